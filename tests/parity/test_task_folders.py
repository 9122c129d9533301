"""Every fine-tuned run loads in the matching class of transformers or sentence-transformers, with equal predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.predict.convert.comparison import Probe, run
from bertie.predict.convert.verify import Verification
from bertie.tasks import AnyTask, Choose, Embed, Regress, Span, Tag
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

transformers = pytest.importorskip("transformers", reason="needs the package transformers")
LIMIT = 1e-5


def rows_of(kind: str, texts: list[str]) -> list[dict[str, Any]]:
    """Return 12 examples."""
    make = {
        "regress": lambda i, text: {"text": text[:40], "score": i / 7},
        "choose": lambda i, text: {
            "context": text[:20],
            "endings": [texts[i + k][20:40] for k in range(3)],
            "label": i % 3,
        },
        "tag": lambda _, text: {"tokens": text.split()[:8], "tags": [word[0] for word in text.split()[:8]]},
        "span": lambda _, text: {"question": text.split()[0], "context": text[:100], "answers": [text.split()[2]]},
        "embed": lambda _, text: {"text": text[:40], "text_pair": text[40:80]},
    }[kind]
    return [make(i, text) for i, text in enumerate(texts[:12])]


def tuned(task: AnyTask, rows: list[Any], pretrained: Path, out: Path) -> Any:
    training = FinetuneTraining(steps=5, batch_size=4, learning_rate=1e-2, precision="fp32")
    config = FinetuneConfig(task, AdamW(), LinearDecay(), training, max_length=48, hidden_dropout_prob=0.0)
    bertie.finetune(config, rows, pretrained, out, dev=rows, threads=1)
    return bertie.load(out, threads=1)


def require_equal(found: Verification, *parts: str) -> None:
    """Require that these parts are among what was compared, and that nothing differs."""
    assert found.problem == ""
    assert {*parts} <= {each.what for each in found.comparisons if each.judged and each.difference <= LIMIT}


@pytest.mark.parametrize(
    ("task", "parts"),
    [
        (Regress(), ["outputs of the head (regression)", 'predictions of pipeline("text-classification")']),
        (Choose(), ["outputs of the head (multiple choice)"]),
        (Tag(), ["outputs of the head (tagging)", "tags of words"]),
        (Span(), ["outputs of the head (question answering)"]),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_predictions(task: AnyTask, parts: list[str], pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    predictor = tuned(task, rows_of(task.kind, small_texts), pretrained, tmp_path / "run")
    if task.kind == "regress":  # a run gives standardized numbers
        bertie.convert(tmp_path / "run", tmp_path / "converted", "hf", threads=1)
    folder = tmp_path / ("converted" if task.kind == "regress" else "run")
    require_equal(bertie.verify(folder, "transformers", threads=1), *parts)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "run")
    if task.kind == "regress":
        assert config.problem_type == "regression"
    if task.kind == "tag":
        assert list(config.id2label.values()) == list(predictor.task.labels)


def test_answers_are_the_best_spans_of_the_logits(pretrained: Path, small_texts: list[str], tmp_path: Path) -> None:
    """Of questions with one window. test_tasks.py compares several windows."""
    rows = rows_of("span", small_texts)
    predictor = tuned(Span(), rows, pretrained, tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "run").eval()
    rows = [row for row in rows if len(tokenizer(row["question"], row["context"]).input_ids) <= 48]
    assert rows

    def theirs(row: dict[str, Any]) -> list[Any]:
        inputs = tokenizer(row["question"], row["context"], return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0].tolist()
        with torch.inference_mode():
            output = model(**inputs)
        inside = [i for i, side in enumerate(inputs.sequence_ids()) if side == 1]
        scores = output.start_logits[0][:, None] + output.end_logits[0]
        score, i, j = max((float(scores[i, j]), i, j) for i in inside for j in inside if i <= j < i + 30)
        return [offsets[i][0], offsets[j][1], score]

    ours = [[found.start, found.end, found.guesses[0].score] for found in predictor.predict(rows)]
    [compared] = run([Probe("answers", rows, ours, lambda: [theirs(row) for row in rows])])
    assert compared.equal, compared.lines()


def test_conditional_span_is_written_as_a_plain_encoder(
    pretrained: Path, small_texts: list[str], tmp_path: Path
) -> None:
    """BertForQuestionAnswering would silently ignore the weights that make the end depend on the start."""
    rows = rows_of("span", small_texts)
    predictor = tuned(Span(conditional=True), rows, pretrained, tmp_path / "run")
    assert predictor.task.conditional
    assert predictor.predict(rows)[0].answer
    model, _ = transformers.AutoModel.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert type(model) is transformers.BertModel
    ours = predictor.model.encoder.embeddings.word.weight
    assert torch.equal(model.embeddings.word_embeddings.weight, ours)
    assert "Only bertie loads the layers above it" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_vectors_of_embed(pretrained: Path, small_texts: list[str], tmp_path: Path, pooling: Any) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the package sentence-transformers")
    tuned(Embed(pooling=pooling), rows_of("embed", small_texts), pretrained, tmp_path / "run")
    found = bertie.verify(tmp_path / "run", "sentence-transformers", threads=1)
    require_equal(found, "vectors of encode", "similarity")
    assert json.loads((tmp_path / "run" / "task.json").read_text())["pooling"] == pooling
