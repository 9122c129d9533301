"""Taggers of characters, for scripts without blanks and spans that end within words."""

from __future__ import annotations

import json
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertie
from bertie.base.errors import UserError
from bertie.checkpoints.folder import write_model
from bertie.examples.words import split_characters
from bertie.finetuning.finetune import finetune
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.model import Model
from bertie.tasks import Tag

transformers = pytest.importorskip("transformers", reason="needs the package transformers")

PLACES = ["東京タワー", "กรุงเทพ", "北京", "서울", "दिल्ली"]
FRAMES = ["山田は{}へ行きました。", "ฉันไป{}แล้ว", "我在{}住。", "저는 {}에서 살아요.", "वह {} में है"]
SETTINGS = {"extends": "tag", "from_scratch": True, "training": {"learning_rate": 3e-3, "epochs": 20}}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    """Texts in five scripts. In Korean, particles follow a name without a blank."""
    rng, made = random.Random(2), []
    for _ in range(150):
        number = rng.randrange(5)
        before, after = FRAMES[number].split("{}")
        text, count = before + PLACES[number] + after, rng.randint(0, 2)
        start = len(before) + 2 * count
        made.append({"text": "あ " * count + text, "entities": [[start, start + len(PLACES[number]), "LOC"]]})
    return made


@pytest.fixture(scope="module", params=["wordpiece", "bpe", pytest.param("unigram", marks=pytest.mark.slow)])
def start(
    request: pytest.FixtureRequest, rows: list[dict[str, Any]], tiny_config: TransformerConfig, tmp_path_factory: Any
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "texts.txt").write_text("\n\n".join(row["text"] for row in rows))
    tokenizer = bertie.train_tokenizer(folder / "texts.txt", folder / "v", algorithm=request.param, vocab_size=330)
    config = replace(tiny_config, vocab_size=tokenizer.size, max_position_embeddings=130)
    (folder / "start").mkdir()
    write_model(folder / "start", Model(build_encoder(config), {}), tokenizer)
    return folder / "start"


@pytest.fixture(scope="module")
def tagger(start: Path, rows: list[dict[str, Any]]) -> Path:
    run = start.parent / "run"
    finetune(SETTINGS | {"task": {"units": "characters"}}, rows[:130], start, run, dev=rows[130:], threads=1)
    return run


def test_entities_are_annotated_and_those_of_the_pipeline(tagger: Path, rows: list[dict[str, Any]]) -> None:
    """Offsets are code points of the text, also beside white space and marks."""
    model, strategies = bertie.load(tagger, threads=1), ("none", "simple", "first", "average", "max")
    texts = [row["text"] for row in rows[140:]] + ["나는  서울\n에、 กี่ か\u3099"]
    for strategy in strategies:
        pipeline = transformers.pipeline("token-classification", str(tagger), aggregation_strategy=strategy)
        for text in texts:
            [found] = model.predict([text], strategy)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = pipeline(text)
            kinds = [each.get("entity_group") or each["entity"] for each in expected]
            theirs = [(each["start"], each["end"], kind) for each, kind in zip(expected, kinds, strict=True)]
            assert [(each.start, each.end, each.label) for each in found.entities] == theirs, (strategy, text)
    found = model.predict(texts[:-1])
    right = [[[e.start, e.end, e.label] for e in each.entities] for each in found]
    assert np.mean([one == row["entities"] for one, row in zip(right, rows[140:], strict=True)]) > 0.8, right


def test_the_written_tokenizer_splits_at_characters(tagger: Path, rows: list[dict[str, Any]]) -> None:
    ours, theirs = bertie.Tokenizer.load(tagger), transformers.AutoTokenizer.from_pretrained(tagger)
    for text in [row["text"] for row in rows[:20]]:
        ids = ours.encode([text])[0].tolist()
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
        covered = {place for a, b in ours.encode_with_offsets([text])[0].offsets for place in range(a, b)}
        assert covered == {place for place, character in enumerate(text) if not character.isspace()}


def test_words_say_that_characters_would_do(
    start: Path, rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="cuts the word") as error:
        list(Tag().reader.values(rows, labeled=True))
    assert "--task.units characters" in str(error.value)
    finetune(SETTINGS | {"task": {"units": "characters"}, "training": {"steps": 1}}, rows, start, dev=rows, threads=1)
    said = capsys.readouterr().err
    assert "times as many as with start's own tokenizer" in said


def test_files_with_a_character_a_line(tmp_path: Path) -> None:
    """As KLUE has them: blanks have a line."""
    lines = [("서", "B-LC"), ("울", "I-LC"), ("에", "O"), (" ", "O"), ("간", "O")]
    path = tmp_path / "klue.tsv"
    heads = [f"## klue-ner-v1_{number}\t<서울:LC>에 간{number}" for number in range(3)]
    path.write_text("\n\n".join("\n".join([head, *map("\t".join, lines)]) for head in heads) + "\n")
    first, second, _ = Tag(units="characters").reader.read(path)
    assert (first.text, first.words, first.tags) == ("서울에 간", (*"서울에간",), ("B-LC", "I-LC", "O", "O"))
    assert (first.places[-1], first.place(3), second.text) == ((4, 5), f"{path.name}:6", first.text)
    problem = next(item for item in Tag().reader.read(path) if isinstance(item, UserError)).problem
    assert "if each line has a character, set --task.units characters" in problem
    [listed] = Tag(units="characters").reader.values([["서", "울", " ", "에"]])
    assert (listed.text, listed.words) == ("서울 에", (*"서울에",))
    with pytest.raises(UserError, match="'서울' is not one character"):
        list(Tag(units="characters").reader.values([["서울", "에"]]))
    path.write_text("ก\tO\n\u0e35\tO\n\nข\tO\n")  # a mark by itself
    bad, good = Tag(units="characters").reader.read(path)
    assert isinstance(bad, UserError)
    assert good.words == ("ข",)


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("ab  c", ["a", "b", "c"]),
        ("กี่ เ", ["กี่", "เ"]),  # two marks
        ("दिल्ली", ["दि", "ल्", "ली"]),  # spacing marks, too
        ("か\u3099\u200d", ["か\u3099\u200d"]),
        ("\u0301a", ["\u0301", "a"]),
        ("", []),
    ],
)
def test_marks_belong_to_their_character(text: str, units: list[str]) -> None:
    assert [text[start:end] for start, end in split_characters(text)] == units


def test_the_case_is_read(shared_data: Path) -> None:
    """All rows are read, which words refuse."""
    path = shared_data.parent / "cases" / "data" / "japanese_spans.jsonl"
    examples = list(Tag(units="characters").reader.read(path))
    spans = [json.loads(line)["entities"] for line in path.read_text().splitlines()]
    assert len(examples) == len(spans)
    assert not any(isinstance(example, UserError) for example in examples)
