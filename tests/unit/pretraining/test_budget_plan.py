from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie import UsageError
from bertie.cli import main
from bertie.pretraining import budget_plan
from bertie.pretraining.budget_plan import FILL_A_GPU, RECIPES
from bertie.text.shards import open_shards


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time the steps of the smallest recipe only."""
    monkeypatch.setattr(budget_plan, "PATIENCE", 1e-3)


def losses(result: dict[str, Any]) -> dict[str, float]:
    return {each["recipe"]: each["loss"] for each in result["outlooks"]}


def test_it_recommends_the_recipe_with_the_lowest_loss(small_shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bertie.plan(small_shards, 2, threads=1)
    assert list(losses(result)) == list(RECIPES)
    assert result["recommended"] == min(losses(result), key=losses(result).__getitem__)
    assert result["text_tokens"] == int(open_shards(small_shards).train.document_starts[-1])
    for each in result["outlooks"]:
        assert each["tokens"] == pytest.approx(7200 * each["tokens_per_second"])
        assert each["epochs"] == pytest.approx(each["tokens"] / result["text_tokens"])
        assert each["timed"] == (each["recipe"] == "modern-tiny")
        assert each["steps"] == int(each["tokens"] / each["batch_size"] / 128)
    speeds = [each["tokens_per_second"] for each in result["outlooks"]]
    assert speeds == sorted(speeds, reverse=True)
    shown = capsys.readouterr().err
    assert f"→ {result['recommended']}" in shown
    assert f"would read the text {result['outlooks'][0]['epochs']:,.0f} times" in shown or "warning" in shown


def test_the_command_runs(small_shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = bertie.plan(small_shards, 0.05, threads=1)
    words = shlex.split(result["command"])
    assert words[:3] == ["bertie", "pretrain", result["recommended"]]
    assert words[-4:-2] == ["--budget", "3m"]
    assert main([*words[1:], "--dry-run", "--threads", "1"]) == 0
    assert "the budget of 3 minutes" in capsys.readouterr().err


def test_the_speed_of_a_gpu_elsewhere_follows_from_its_peak_rate(
    small_shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    half = bertie.plan(small_shards, 1, device="h100", utilization=0.5, threads=1)
    assert list(losses(half)) == list(FILL_A_GPU)
    assert "assumes 50 % of the peak rate" in capsys.readouterr().err
    base = half["outlooks"][0]
    operations = 989e12 * 0.5 / base["tokens_per_second"]
    assert operations > 6 * base["parameters"]  # and those of attention and of the predictions
    assert operations < 9 * base["parameters"]
    quarter = bertie.plan(small_shards, 1, device="h100", utilization=0.25, threads=1)
    assert quarter["outlooks"][0]["tokens"] == pytest.approx(base["tokens"] / 2)
    a100 = bertie.plan(small_shards, 1, device="a100", utilization=0.5, threads=1)
    assert a100["outlooks"][0]["tokens"] == pytest.approx(base["tokens"] * 312 / 989)


def test_recipes_that_are_too_slow_are_left_out(small_shards: Path) -> None:
    assert set(losses(bertie.plan(small_shards, 0.01, threads=1))) < set(RECIPES)


@pytest.mark.parametrize(
    ("hours", "options", "message"),
    [
        (0, {}, "--hours 0: give a number above 0, at most 8,784"),
        (-1, {}, "--hours -1: give"),
        (math.nan, {}, "--hours nan: give"),
        (math.inf, {}, "--hours inf: give"),
        (1e-7, {}, "--hours 1e-07: too short for 20 steps of any recipe; give more time"),
        (1, {"device": "cuda"}, "--device cuda: bertie would train on cpu here; leave --device out, or name a GPU"),
        (1, {"device": "h100", "utilization": 0.0}, "--utilization 0: give a number above 0, at most 1"),
        (1, {"device": "h100", "utilization": 1.5}, "--utilization 1.5: give"),
    ],
)
def test_errors(hours: float, options: dict[str, Any], message: str, small_shards: Path) -> None:
    with pytest.raises(UsageError) as caught:
        bertie.plan(small_shards, hours, threads=1, **options)
    assert message in str(caught.value)


def test_the_command_line(small_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(small_shards.rglob("*"))
    assert main(["plan", "--data", str(small_shards), "--hours", "24", "--device", "l4", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["device"] == "l4"
    assert sorted(small_shards.rglob("*")) == before
    assert main(["plan", "--data", str(small_shards), "--hours", "24", "--device", "tpu"]) == 2
    assert "--device: expected 'auto', 'cpu', 'cuda', 'h200'" in capsys.readouterr().err
    assert main(["plan", "--data", str(tmp_path), "--hours", "24"]) in (1, 2)
    assert str(tmp_path) in capsys.readouterr().err
