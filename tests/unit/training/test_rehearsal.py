from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import bertie
from bertie.batches.layouts import Pairs
from bertie.model.config import BertConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.training.optimizers import AdamW
from bertie.training.phases import Phase
from bertie.training.recipe import PretrainConfig, Training
from bertie.training.rehearsal import rehearse
from bertie.training.schedules import Linear


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None: ...


@pytest.fixture
def config(tiny_config: BertConfig) -> PretrainConfig:
    training = Training(steps=30, batch_size=16, learning_rate=1e-2, row_tokens=128, precision="fp32", micro_batch=2)
    size = replace(tiny_config, vocab_size=0)
    objectives = (MaskedLM(start_from="frequencies"), NextSentence())
    return PretrainConfig(size, Pairs(max_length=32), objectives, AdamW(), Linear(0.1), training)


def test_its_steps_are_the_first_of_the_run_and_nothing_is_written(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = rehearse(config, small_shards, tmp_path / "run", threads=1)
    assert list(tmp_path.iterdir()) == []
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert told["losses"] == pytest.approx([json.loads(line)["loss"] for line in lines[:3]], rel=1e-6)
    assert told["parameters"] == 38_006
    written = sum(
        path.stat().st_size for path in (tmp_path / "run" / "checkpoints" / "step-00000030").rglob("*.safetensors")
    )
    assert told["checkpoint"] == pytest.approx(written, rel=0.1)
    said = capsys.readouterr().err
    assert "[CLS] [MASK] gedolosh" in said
    assert "2 × 128 tokens in" in said


def test_every_phase_is_told(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    phases = replace(config, phases=(Phase(0.9), Phase(0.1, max_length=64)))
    first, second = rehearse(phases, small_shards, tmp_path / "run", threads=1)["phases"]
    assert (first["steps"], second["steps"]) == (27, 3)
    assert (first["tokens"], second["tokens"]) == (512, 1024)
    assert second["memory"] > first["memory"]
