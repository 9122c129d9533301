"""Taggers with byte-level BPE and SentencePiece's pieces read a raw text as it stands, as transformers' pipeline does."""

from __future__ import annotations

import json
import random
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.checkpoints.folder import write_model
from bertie.finetuning.finetune import finetune
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.predict.convert import verify
from bertie.tasks.tag_tokens import Strategy

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

NAMES = {"PER": ["Anna", "O'Neil", "Jean-Luc", "Bo Li", "Mia"], "LOC": ["New York", "Rome", "St. Ives", "Köln", "Oslo"]}
FRAMES = [
    "({a}), {b}",
    '"{a}" saw {b}.',
    "{a}, {b} and-{c}!",
    "in [{b}]: {a}'s {c}",
    "{c} -{a}- met\n{b}; {c}?",
    "{a}/{b}",
]
OTHERS = ["the cat", "old books", "a river", "soup"]


def row(rng: random.Random) -> dict[str, Any]:
    """A text with names beside brackets, quotes, commas and hyphens, and their spans."""
    frame = rng.choice(FRAMES)
    chosen = {"a": rng.choice(NAMES["PER"]), "b": rng.choice(NAMES["LOC"]), "c": rng.choice(OTHERS)}
    kinds = {"a": "PER", "b": "LOC"}
    text, spans = "", []
    for part in frame.replace("}", "{").split("{"):
        if part in kinds:
            spans.append([len(text), len(text) + len(chosen[part]), kinds[part]])
        text += chosen.get(part, part)
    return {"text": text, "entities": spans}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    rng = random.Random(1)
    return [row(rng) for _ in range(220)]


@pytest.fixture(scope="module", params=["bpe", "unigram", pytest.param("wordpiece", marks=pytest.mark.slow)])
def tagger(
    request: pytest.FixtureRequest, rows: list[dict[str, Any]], tiny_config: TransformerConfig, tmp_path_factory: Any
) -> Path:
    """A tagger with pieces of one kind, trained on 200 texts."""
    folder = tmp_path_factory.mktemp(request.param)
    separate = [
        re.sub(r"([^\w\s])", r" \1 ", row["text"]).replace("\n", " ") for row in rows
    ]  # so no piece is ",▁Rome"
    (folder / "texts.txt").write_text("\n\n".join(separate))
    tokenizer = bertie.train_tokenizer(folder / "texts.txt", folder / "v", algorithm=request.param, vocab_size=330)
    config = replace(tiny_config, vocab_size=tokenizer.size, max_position_embeddings=130)
    (folder / "start").mkdir()
    write_model(folder / "start", Model(build_encoder(config), {}), tokenizer)
    settings = {"extends": "tag", "from_scratch": True, "training": {"learning_rate": 3e-3, "epochs": 8}}
    finetune(settings, rows[:200], folder / "start", folder / "run", dev=rows[200:], threads=1)
    return folder / "run"


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
def test_entities_are_those_of_the_pipeline(tagger: Path, rows: list[dict[str, Any]], strategy: Strategy) -> None:
    pipeline = transformers.pipeline("token-classification", str(tagger), aggregation_strategy=strategy)
    model, kinds = bertie.load(tagger, threads=1), set()
    for text in [row["text"] for row in rows[200:]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its words are what stands between blanks, which it says
            expected = pipeline(text)
        [found] = model.predict([text], strategy)
        label = "entity" if strategy == "none" else "entity_group"
        ours = [(each.start, each.end, each.label) for each in found.entities]
        assert ours == [(each["start"], each["end"], each[label]) for each in expected], text
        assert [e.score for e in found.entities] == pytest.approx([float(e["score"]) for e in expected], abs=1e-5)
        kinds |= {each.label for each in found.entities}
    assert len(kinds) > 1


def test_tags_of_words_are_those_of_their_first_tokens(tagger: Path, rows: list[dict[str, Any]]) -> None:
    """By default, words are those of training, so a bracket does not hide a name."""
    pipeline = transformers.pipeline("token-classification", str(tagger), ignore_labels=[])
    model, right = bertie.load(tagger, threads=1), []
    for example in rows[200:]:
        text = example["text"]
        [found] = model.predict([text])
        pieces, place = [(each["start"], each["entity"]) for each in pipeline(text)], 0
        for word, tag in zip(found.tokens, found.tags, strict=True):
            place = text.index(word, place)
            assert (place, tag) in pieces, (text, word)  # "Ġ" and "Rome" begin at one place
            place += len(word)
        right.append([[e.start, e.end, e.label] for e in found.entities] == example["entities"])
    assert np.mean(right) > 0.7


def test_verify_compares_entities(tagger: Path) -> None:
    compared = verify.compare(bertie.load(tagger, threads=1), "transformers")
    assert any(each.what.startswith("entities of pipeline") for each in compared)
    assert [each for each in compared if each.judged and not each.equal] == []


def test_runs_of_before_answer_as_before(tagger: Path, tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    """Their task.json says nothing of it: words of a text are read as a list of words."""
    old = tmp_path / "old"
    old.mkdir()
    for path in tagger.iterdir():
        if path.is_file() and path.name != "manifest.json":
            (old / path.name).write_bytes(path.read_bytes())
    values = json.loads((old / "task.json").read_text()) | {"aggregation_strategy": "first"}
    (old / "task.json").write_text(json.dumps({name: value for name, value in values.items() if name != "in_place"}))
    model = bertie.load(old, threads=1)
    for text in [row["text"] for row in rows[200:]]:
        [found] = model.predict([text])
        [listed] = model.predict([found.tokens])
        assert found.tags == listed.tags
