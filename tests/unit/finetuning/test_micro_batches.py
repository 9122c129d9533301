"""Padding of micro-batches to few different sizes, with unchanged losses for every task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.contracts import ComparedBatch, MicroBatch
from bertie.finetuning import single_run
from bertie.finetuning.micro_batches import MicroBatcher, token_multiple
from bertie.predict.engines import cpu
from bertie.tasks import AnyTask, Choose, Classify, Embed, Regress, Span, Tag

Rows = list[dict[str, Any]]

CONFIG = fine_tuning(1)
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


def watch(seen: list[Any], monkeypatch: pytest.MonkeyPatch, name: str = "micro_batch") -> None:
    """Append every micro-batch to `seen`. name: the method that makes them."""
    original = getattr(MicroBatcher, name)

    def made(batcher: MicroBatcher, *given: Any) -> Any:
        seen.append(original(batcher, *given))
        return seen[-1]

    monkeypatch.setattr(MicroBatcher, name, made)


@pytest.mark.parametrize(
    ("name", "lstm_hidden_size"),  # embed reads the last layer
    [
        *((name, 0) for name in CASES),
        *(
            pytest.param(name, 8, marks=[] if name in ("classify", "span") else pytest.mark.slow)
            for name in CASES
            if name != "embed"
        ),
    ],
)
def test_padded_micro_batches_have_the_same_losses(
    name: str, lstm_hidden_size: int, rows: list[dict[str, str]], start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without padding, oneDNN compiles matrix products for every new size. Filler sequences attend to themselves."""
    if lstm_hidden_size and not cpu.has(cpu.BF16):
        pytest.skip("needs a processor with bf16 instructions")
    task, row = CASES[name]
    examples: Rows = [row(each["text"], i) for i, each in enumerate(rows)]
    seen: list[MicroBatch] = []
    watch(seen, monkeypatch)
    losses = {}
    for precision, multiple in (("fp32", 1), ("fp32", 64), ("bf16", 64)):
        seen.clear()
        monkeypatch.setattr(single_run, "token_multiple", lambda *_, m=multiple: m)
        training = replace(CONFIG.training, precision=precision)
        config = replace(CONFIG, task=task, training=training, lstm_hidden_size=lstm_hidden_size)
        no_dropout = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        losses[precision, multiple] = bertie.finetune(
            no_dropout, examples[:24], start, dev=examples[50:], threads=1
        ).losses
        for micro in seen:
            tokens, head_rows = len(micro.batch.input_ids), len(micro.rows)
            assert (tokens % multiple, head_rows % multiple) == (0, 0)
            assert micro.tokens <= tokens < micro.tokens + multiple
    assert any(len(micro.batch.input_ids) > micro.tokens for micro in seen)
    assert losses["fp32", 64] == pytest.approx(losses["fp32", 1], rel=1e-4)
    assert losses["bf16", 64] == pytest.approx(losses["fp32", 1], rel=0.1)


def test_only_bf16_on_a_cpu_is_padded() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [token_multiple(p, d) for d in (cpu, gpu) for p in ("fp32", "bf16")] == [1, 64, 1, 1]


def test_last_dev_pair_joins_the_batch_before_it(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one pair has no negatives: its prediction would always be correct."""
    pairs = [{"text": f"ka {i}", "text_pair": "ka du"} for i in range(9)]
    seen: list[ComparedBatch] = []
    watch(seen, monkeypatch, "compared")
    config = replace(CONFIG, task=Embed(positives="pairs"), training=replace(CONFIG.training, batch_size=4))
    bertie.finetune(config, pairs[:8], start, tmp_path / "run", dev=pairs, threads=1)
    assert [len(micro.targets["embed"].weight) for micro in seen] == [4, 4, 4, 5]
