"""Every fine-tuned run loads in the matching class of transformers or sentence-transformers, with equal predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.tasks import AnyTask, Choose, Embed, Regress, Span, Tag
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

transformers = pytest.importorskip("transformers", reason="needs the package transformers")


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None: ...


def tuned(task: AnyTask, rows: list[Any], pretrained: Path, out: Path) -> Any:
    training = FinetuneTraining(steps=5, batch_size=4, learning_rate=1e-2, precision="fp32")
    config = FinetuneConfig(task, AdamW(), LinearDecay(), training, max_length=48, hidden_dropout_prob=0.0)
    bertie.finetune(config, rows, rows, pretrained, out, threads=1)
    return bertie.load(out, threads=1)


def theirs(kind: str, folder: Path) -> tuple[Any, Any]:
    model, loading = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values()), loading
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder)


def test_predictions_of_regress(pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    rows = [{"text": text[:40], "score": i / 7} for i, text in enumerate(small_texts[:12])]
    found = tuned(Regress(), rows, pretrained, tmp_path / "run").predict(rows)
    model, tokenizer = theirs("AutoModelForSequenceClassification", tmp_path / "run")
    assert model.config.problem_type == "regression"
    with torch.inference_mode():
        expected = model(**tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")).logits[:, 0]
    np.testing.assert_allclose([each.score for each in found], expected, atol=1e-5)
    assert float(expected.std()) > 1e-4


def test_predictions_of_choose(pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    rows = [
        {"context": small_texts[i][:20], "endings": [small_texts[i + k][20:40] for k in range(3)], "label": i % 3}
        for i in range(12)
    ]
    found = tuned(Choose(), rows, pretrained, tmp_path / "run").predict(rows)
    model, tokenizer = theirs("AutoModelForMultipleChoice", tmp_path / "run")
    first = [row["context"] for row in rows for _ in row["endings"]]
    inputs = tokenizer(first, [e for row in rows for e in row["endings"]], padding=True, return_tensors="pt")
    with torch.inference_mode():
        expected = model(**{k: v.view(12, 3, -1) for k, v in inputs.items()}).logits.softmax(-1)
    np.testing.assert_allclose([each.probabilities for each in found], expected, atol=1e-5)


def test_predictions_of_tag(pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    rows = [{"tokens": (words := text.split()[:8]), "tags": [word[0] for word in words]} for text in small_texts[:12]]
    predictor = tuned(Tag(), rows, pretrained, tmp_path / "run")
    found = predictor.predict(rows)
    model, tokenizer = theirs("AutoModelForTokenClassification", tmp_path / "run")
    assert list(model.config.id2label.values()) == list(predictor.task.labels)
    for prediction, row in zip(found, rows, strict=True):
        inputs = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**inputs).logits[0]
        places = [inputs.word_ids().index(word) for word in range(len(row["tokens"]))]
        assert prediction.tags == [model.config.id2label[int(i)] for i in logits[places].argmax(-1)]
        np.testing.assert_allclose(prediction.probabilities, logits[places].softmax(-1).max(-1).values, atol=1e-5)


def test_predictions_of_span(pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    rows = [
        {"question": text.split()[0], "context": text[:100], "answers": [text.split()[2]]} for text in small_texts[:12]
    ]
    found = tuned(Span(), rows, pretrained, tmp_path / "run").predict(rows)
    model, tokenizer = theirs("AutoModelForQuestionAnswering", tmp_path / "run")
    for prediction, row in zip(found, rows, strict=True):
        inputs = tokenizer(row["question"], row["context"], return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.inference_mode():
            output = model(**inputs)
        inside = [i for i, side in enumerate(inputs.sequence_ids()) if side == 1]
        if len(inputs.input_ids[0]) > 48:
            continue  # several windows: test_tasks.py compares those
        score, i, j = max(
            (float(output.start_logits[0, i] + output.end_logits[0, j]), i, j)
            for i in inside
            for j in inside
            if i <= j < i + 30
        )
        assert (prediction.start, prediction.end) == (offsets[i][0], offsets[j][1])
        assert prediction.guesses[0].score == pytest.approx(score, abs=1e-4)


def test_conditional_span_is_written_as_a_plain_encoder(
    pretrained: Path, small_texts: list[str], tmp_path: Path
) -> None:
    """BertForQuestionAnswering would silently ignore the weights that make the end depend on the start."""
    rows = [{"question": "a", "context": text[:60], "answers": [text.split()[2]]} for text in small_texts[:12]]
    predictor = tuned(Span(conditional=True), rows, pretrained, tmp_path / "run")
    assert predictor.task.conditional
    assert predictor.predict(rows)[0].answer
    model, _ = transformers.AutoModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert type(model) is transformers.BertModel
    ours = predictor.model.encoder.embeddings.word.weight
    assert torch.equal(model.embeddings.word_embeddings.weight, ours)
    assert "Only bertie loads the layers above it" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_predictions_of_embed(pretrained: Path, small_texts: list[str], tmp_path: Path, pooling: Any) -> None:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the package sentence-transformers"
    )
    rows = [{"text": text[:40], "text_pair": text[40:80]} for text in small_texts[:12]]
    found = tuned(Embed(pooling=pooling), rows, pretrained, tmp_path / "run").predict(rows)
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert model.max_seq_length == 48
    sides = [model.encode([row[side] for row in rows], normalize_embeddings=True) for side in ("text", "text_pair")]
    for number, prediction in enumerate(found):
        np.testing.assert_allclose(prediction.vectors[0], sides[0][number], atol=1e-5)
        np.testing.assert_allclose(prediction.vectors[1], sides[1][number], atol=1e-5)
    assert model.similarity_fn_name == "cosine"
    written = json.loads((tmp_path / "run" / "task.json").read_text())
    assert written["pooling"] == pooling
