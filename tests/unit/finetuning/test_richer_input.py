"""From the vocabulary to predictions without punctuation and with line breaks: all parts read a text alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.predict.small_models import model_of
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.checkpoints.folder import write_model
from bertie.corpus.prepare import prepare
from bertie.corpus.shards import open_shards
from bertie.corpus.vocabulary import train_tokenizer
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.predict.predictor import Predictor
from bertie.tasks.span import Span
from bertie.tasks.tag import Tag
from bertie.tokenizers.special_tokens import LINE_BREAK
from bertie.tokenizers.tokenizer import NormalizerOptions, Tokenizer

CONFIG = fine_tuning(8, 6e-3)
TRAINING = CONFIG.training


@pytest.fixture(scope="module")
def start(
    small_texts: list[str], tiny_config: TransformerConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tokenizer]:
    """A checkpoint with the tokenizer of shards, without punctuation and with line breaks."""
    folder = tmp_path_factory.mktemp("richer")
    texts = [text.replace(". ", ".\n", 2) for text in small_texts]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    normalization = NormalizerOptions(drop_punctuation=True)
    trained = train_tokenizer(
        folder / "text.jsonl",
        folder / "tokenizer",
        vocab_size=500,
        normalization=normalization,
        user_tokens=[LINE_BREAK],
    )
    prepare(folder / "text.jsonl", trained, folder / "shards", eval_share=0.1)
    shards = open_shards(folder / "shards")
    counts = shards.train.frequencies(500) + shards.eval.frequencies(500)
    assert counts[trained.line_break_id] == sum(text.count("\n") for text in texts) > 400
    assert counts[trained.unk_id] == 0
    (folder / "model").mkdir()
    write_model(folder / "model", model_of(tiny_config, MaskedLM(), scale=0.1), shards.tokenizer)
    return folder / "model", trained


def finetune(config: FinetuneConfig, rows: list[Any], start: Path, out: Path) -> Predictor:
    bertie.finetune(config, rows, start, out, dev=rows, threads=1)
    return bertie.load(out, threads=1)


def test_classifier_sees_line_breaks_and_no_punctuation(
    start: tuple[Path, Tokenizer], small_texts: list[str], tmp_path: Path
) -> None:
    words = [text.split()[:6] for text in small_texts[:40]]
    rows = [
        {"text": " ".join(w[:3]) + (" ", "\n")[i % 2] + " ".join(w[3:]), "label": ("line", "lines")[i % 2]}
        for i, w in enumerate(words)
    ]
    tuned = finetune(CONFIG, rows, start[0], tmp_path / "run")
    assert tuned.tokenizer.fingerprint == start[1].fingerprint
    predictions = tuned.predict([row["text"] for row in rows])
    assert [found.label for found in predictions] == [row["label"] for row in rows]
    probabilities = [
        [found.probabilities for found in tuned.predict([text])]
        for text in ("ka du\nin", "ka, (du)!\n[in]", "ka du in")
    ]
    assert probabilities[0] == probabilities[1] != probabilities[2]


def test_answers_have_the_offsets_of_the_text(
    start: tuple[Path, Tokenizer], small_texts: list[str], tmp_path: Path
) -> None:
    rows = []
    for i, text in enumerate(small_texts[:24]):
        first, answer, last = text.split()[1:4]
        context = f"«{first}»,\n\n…({answer})!\n{last}."
        rows.append({"id": f"q{i}", "question": f"({answer})?", "context": context, "answers": [answer]})
    config = replace(CONFIG, task=Span(), training=replace(TRAINING, epochs=14))
    tuned = finetune(config, rows, start[0], tmp_path / "run")
    found = tuned.predict(rows)
    for row, prediction in zip(rows, found, strict=True):
        assert row["context"][prediction.start : prediction.end] == prediction.answer
        assert prediction.answer[0].isalpha()  # a span starts and ends at a word or a line break
        assert prediction.answer[-1].isalpha()
    assert np.mean([row["answers"][0] == p.answer for row, p in zip(rows, found, strict=True)]) > 0.9


def test_tags_of_dropped_punctuation_are_the_default(
    start: tuple[Path, Tokenizer], small_texts: list[str], tmp_path: Path
) -> None:
    rows = []
    for text in small_texts[:30]:
        words = ["``", *text.split()[:5], "…", "."]
        tags = ["O", *("B-T" if word.endswith("t") else "B-N" if word.endswith("n") else "O" for word in words[1:])]
        rows.append({"tokens": words, "tags": tags})
    config = replace(CONFIG, task=Tag(), training=replace(TRAINING, epochs=14))
    tuned = finetune(config, rows, start[0], tmp_path / "run")
    found = tuned.predict([row["tokens"] for row in rows])
    assert (
        np.mean([a == b for row, p in zip(rows, found, strict=True) for a, b in zip(row["tags"], p.tags, strict=True)])
        > 0.9
    )
    for prediction in found:
        assert [prediction.tags[i] for i in (0, -2, -1)] == ["O"] * 3
        assert [prediction.probabilities[i] for i in (0, -2, -1)] == [0.0] * 3
        assert min(prediction.probabilities[1:-2]) > 0
    [nothing] = tuned.predict([["!", "?"]])
    assert (nothing.tags, nothing.probabilities) == (["O", "O"], [0.0, 0.0])


def test_transformers_reads_texts_like_a_fine_tuned_model(
    start: tuple[Path, Tokenizer], small_texts: list[str], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    rows = [{"text": text[:40], "label": ("a", "b")[i % 2]} for i, text in enumerate(small_texts[:10])]
    config = replace(CONFIG, training=replace(TRAINING, epochs=1))
    tuned = finetune(config, rows, start[0], tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    texts = [text.replace(" ", "\n", 3)[:60] for text in small_texts[10:20]]
    with torch.inference_mode():
        theirs = model(**tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=24))
    ours = tuned.predict(texts)
    expected = theirs.logits.softmax(-1).numpy()
    assert [list(found.probabilities.values()) for found in ours] == pytest.approx(expected, abs=1e-5)


def test_words_without_tokens_have_vectors_of_zeros(start: tuple[Path, Tokenizer]) -> None:
    model = bertie.load(start[0], threads=1)
    [found, empty] = model.word_vectors([["(", "ka", ")", "du"], ["…"]])
    assert [bool(vector.any()) for vector in found.vectors] == [False, True, False, True]
    assert not empty.vectors.any()
    assert empty.vectors.shape == (1, 32)
    [text] = model.word_vectors(["(ka)\ndu"])
    assert text.words == ["ka", "du"]
    np.testing.assert_allclose(text.vectors, found.vectors[[1, 3]], atol=1e-6)
