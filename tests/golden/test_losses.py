"""The losses of the first 20 steps, as they were when they were last looked at.

Whatever changes the data's order, the masks, the model, an optimizer or a seed's meaning shows here. If the change is
meant: delete the .txt file beside this one, run this test, which writes it anew and fails, say in the commit why the
losses moved, and run it again. The made-up corpus, 1 thread, fp32, no dropout; machines differ in rounding, hence 2e-4.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.batches.layouts import SentencePairs
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.tasks.classify import Classify
from bertie.training.optimizers import AdamW, BertAdam
from bertie.training.schedules import Linear

HERE = Path(__file__).parent
TOLERANCE = 2e-4


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None: ...


def compare(name: str, rows: list[dict[str, float]]) -> None:
    """With the file of that name: a header, then a line a step."""
    path = HERE / f"{name}.txt"
    columns = list(rows[0])
    if not path.is_file():
        lines = [" ".join(columns), *(" ".join(f"{row[column]:.6g}" for column in columns) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        pytest.fail(f"{path} was missing and is written now: look at it and run again")
    header, *lines = path.read_text().splitlines()
    assert header.split() == columns
    assert len(lines) == len(rows)
    for step, (line, row) in enumerate(zip(lines, rows, strict=True), 1):
        expected = dict(zip(columns, map(float, line.split()), strict=True))
        assert row == pytest.approx(expected, rel=TOLERANCE), f"step {step}"


@pytest.fixture(scope="module")
def pretraining(tiny_config: BertConfig) -> PretrainConfig:
    training = PretrainTraining(steps=20, batch_size=16, learning_rate=3e-3, row_tokens=256, precision="fp32")
    objectives = (MaskedLM(initialization="unigram"), NextSentence())
    return PretrainConfig(
        tiny_config, SentencePairs(max_length=48), objectives, AdamW(betas=(0.9, 0.98)), Linear(warmup=0.1), training
    )


def losses(run: Path, names: tuple[str, ...]) -> list[dict[str, float]]:
    records: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: record[name] for name in names} for record in records if record["split"] == "train"]


def test_pretrain(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    bertie.pretrain(pretraining, small_shards, tmp_path / "run", threads=1)
    compare("pretrain", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_pretrain_by_the_papers_recipe(pretraining: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    config = replace(pretraining, optimizer=BertAdam(), objectives=(MaskedLM(), NextSentence()), seed=1)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    compare("pretrain_paper", losses(tmp_path / "run", ("mlm_loss", "nsp_loss", "grad_norm")))


def test_classify(pretraining: PretrainConfig, small_shards: Path, small_texts: list[str], tmp_path: Path) -> None:
    short = replace(pretraining, training=replace(pretraining.training, steps=1))
    bertie.pretrain(short, small_shards, tmp_path / "start", threads=1)
    rows = [
        {"text": text[:60], "text_pair": text[60:110], "label": ("short", "long")[len(text) > 600]}
        for text in small_texts[:100]
    ]
    training = FinetuneTraining(steps=20, batch_size=16, learning_rate=2e-3, precision="fp32")
    config = FinetuneConfig(
        Classify(),
        AdamW(),
        Linear(warmup=0.1),
        training,
        max_length=40,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    found = bertie.finetune(config, rows[:80], rows[80:], tmp_path / "start", threads=1)
    compare("classify", [{"loss": loss} for loss in found.losses])
