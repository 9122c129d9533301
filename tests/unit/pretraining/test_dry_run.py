from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.small_recipes import pretraining

import bertie
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM, NextSentence
from bertie.pretraining.dry_run import dry_run
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig


@pytest.fixture
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    objectives = (MaskedLM(initialization="unigram"), NextSentence())
    training = {"steps": 30, "row_tokens": 128, "micro_batch": 2, "checkpoint_every": 10}
    return pretraining(tiny_config, objectives=objectives, warmup=0.1, **training)


def test_steps_are_the_first_of_the_run_and_nothing_is_written(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = dry_run(config, small_shards, tmp_path / "run", threads=1)
    assert list(tmp_path.iterdir()) == []
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert result["losses"] == pytest.approx([json.loads(line)["loss"] for line in lines[:3]], rel=1e-6)
    assert result["parameters"] == 38_006
    written = sum(
        path.stat().st_size for path in (tmp_path / "run" / "checkpoints" / "step-00000030").rglob("*.safetensors")
    )
    assert result["checkpoint"] == pytest.approx(written, rel=0.1)
    report = capsys.readouterr().err
    assert "[CLS] [MASK] gedolosh" in report
    assert "2 × 128 tokens in" in report


def test_steps_follow_the_newest_checkpoint_of_a_run(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    bertie.pretrain(config, small_shards, run, threads=1)
    half = shutil.copytree(run, tmp_path / "half", ignore=shutil.ignore_patterns("manifest.json", "config.json"))
    shutil.copytree(run / "checkpoints", half / "checkpoints", dirs_exist_ok=True)
    shutil.rmtree(half / "checkpoints" / "step-00000030")
    before = sorted(half.rglob("*"))
    result = dry_run(config, small_shards, half, threads=1)
    assert (result["status"], sorted(half.rglob("*"))) == ("begun", before)
    assert "would resume after step 20 of 30" in capsys.readouterr().err
    lines = (run / "metrics.jsonl").read_text().splitlines()
    train = [json.loads(line) for line in lines if '"train"' in line]
    assert result["losses"] == pytest.approx([record["loss"] for record in train[20:23]], rel=1e-6)
    assert dry_run(config, small_shards, run, threads=1) == {"status": "finished"}


@pytest.mark.parametrize("budget", ["", "1h"])
def test_warns_of_a_text_that_is_too_small_for_its_steps(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str
) -> None:
    """The text has 38,849 tokens. BERT's paper read its text 40 times."""
    steps = replace(config, training=replace(config.training, steps=4_000))
    dry_run(replace(steps, budget=budget), small_shards, tmp_path / "run", threads=1)
    assert re.search(r"warning: the run reads the text [0-9,]+ times, .* 40: add text", capsys.readouterr().err)
    dry_run(config, small_shards, tmp_path / "run", threads=1)
    assert "warning" not in capsys.readouterr().err


def test_every_phase_is_reported(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    phases = replace(config, phases=(Phase(0.9), Phase(0.1, max_length=64)))
    first, second = dry_run(phases, small_shards, tmp_path / "run", threads=1)["phases"]
    assert (first["steps"], second["steps"]) == (27, 3)
    assert (first["tokens"], second["tokens"]) == (512, 1024)
    assert second["memory"] > first["memory"]
