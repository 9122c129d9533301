"""A step's micro-batches: of few sizes where a new one costs, whatever the task, and with the same losses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import bertie
from bertie.contracts import MicroBatch, Sequence
from bertie.finetuning import single_run
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.tasks import AnyTask, Choose, Classify, Embed, Regress, Span, Tag
from bertie.training.optimizers import AdamW
from bertie.training.schedules import Linear

Rows = list[dict[str, Any]]

TRAINING = FinetuneTraining(epochs=1, batch_size=8, learning_rate=3e-3)
CASES: dict[str, tuple[AnyTask, Any]] = {
    "classify": (Classify(), lambda text, i: {"text": text, "label": "yes" if i % 2 else "no"}),
    "regress": (Regress(), lambda text, i: {"text": text, "score": 0.1 * i}),
    "choose": (Choose(), lambda text, i: {"context": text, "endings": ["a", "in the"], "label": i % 2}),
    "tag": (Tag(), lambda text, _: {"tokens": text.split(), "tags": ["O"] * (len(text.split()) - 1) + ["B-X"]}),
    "span": (Span(), lambda text, _: {"question": "who", "context": text, "answers": [text.split()[-1]]}),
    "conditional": (
        Span(conditional=True),
        lambda text, _: {"question": "who", "context": text, "answers": [text.split()[-1]]},
    ),
    "embed": (Embed(), lambda text, i: {"text": text, "text_pair": text[i % 7 :], "score": float(i % 5)}),
}


def watch(seen: list[MicroBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every pass noted."""
    made = single_run._Passes.one

    def one(passes: single_run._Passes, sequences: list[Sequence]) -> MicroBatch:
        seen.append(made(passes, sequences))
        return seen[-1]

    monkeypatch.setattr(single_run._Passes, "one", one)


@pytest.mark.parametrize(
    ("name", "lstm_hidden_size"),  # embed reads the last layer
    [(name, size) for name in CASES for size in (0, 8) if not size or CASES[name][0].kind != "embed"],
)
def test_filled_passes_have_the_same_losses(
    name: str, lstm_hidden_size: int, rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN would compile its products for every new size; the filler attends to itself and tells nothing."""
    task, row = CASES[name]
    examples: Rows = [row(each["text"], i) for i, each in enumerate(rows)]
    seen: list[MicroBatch] = []
    watch(seen, monkeypatch)
    losses = {}
    for precision, multiple in (("fp32", 1), ("fp32", 64), ("bf16", 64)):
        seen.clear()
        monkeypatch.setattr(single_run, "_lengths", lambda *_, m=multiple: m)
        config = FinetuneConfig(
            task,
            AdamW(),
            Linear(warmup=0.1),
            replace(TRAINING, precision=precision),
            max_length=24,
            lstm_hidden_size=lstm_hidden_size,
        )
        quiet = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        losses[precision, multiple] = bertie.finetune(quiet, examples[:50], examples[50:], start, threads=1).losses
        for micro in seen:
            tokens, asked = len(micro.batch.input_ids), len(micro.rows)
            assert (tokens % multiple, asked % multiple) == (0, 0)
            assert micro.tokens <= tokens < micro.tokens + multiple
    assert any(len(micro.batch.input_ids) > micro.tokens for micro in seen)
    assert losses["fp32", 64] == pytest.approx(losses["fp32", 1], rel=1e-4)
    assert losses["bf16", 64] == pytest.approx(losses["fp32", 1], rel=0.1)


def test_only_bf16_on_a_cpu_is_filled() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [single_run._lengths(p, d) for d in (cpu, gpu) for p in ("fp32", "bf16")] == [1, 64, 1, 1]


def test_no_pair_is_told_from_itself(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pair left over is right whatever the model says: it joins those before it."""
    pairs = [{"text": f"ka {i}", "text_pair": "ka du"} for i in range(9)]
    seen: list[MicroBatch] = []
    watch(seen, monkeypatch)
    training = replace(TRAINING, batch_size=4, precision="fp32")
    config = FinetuneConfig(Embed(), AdamW(), Linear(warmup=0.1), training, max_length=24)
    bertie.finetune(config, pairs[:8], pairs, start, tmp_path / "run", threads=1)
    assert [len(micro.targets["embed"].weight) for micro in seen] == [4, 4, 4, 5]
