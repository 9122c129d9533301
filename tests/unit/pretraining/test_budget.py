"""Pre-training with a budget of time."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.small_recipes import interrupted, pretraining

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.batches.contiguous import DocSentences
from bertie.batches.loader import Step, StepPlan
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining import feed, pretrain, repetition, sources
from bertie.pretraining.dry_run import dry_run
from bertie.pretraining.feed import Feed
from bertie.pretraining.phases import Phase
from bertie.pretraining.recipe import PretrainConfig
from bertie.pretraining.repetition import warn_of_overfitting
from bertie.training import clock, trainer
from bertie.training.schedules import InverseSquareRoot


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    phases = (Phase(0.5), Phase(0.5, max_length=64, batch_size=4))
    training = {"steps": 1, "eval_every": 10, "checkpoint_every": 10}
    recipe = pretraining(tiny_config, DocSentences(max_length=32), (MaskedLM(),), **training)
    return replace(recipe, phases=phases, budget="4s")


def records(run: Path, split: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split]


@pytest.fixture(autouse=True)
def machine_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances 10 ms whenever the run reads it, so that the tests do not depend on the machine's speed."""
    calls = count()
    fake = SimpleNamespace(monotonic=lambda: 100 + 0.01 * next(calls))
    for module in (clock, trainer, pretrain):
        monkeypatch.setattr(module, "time", fake)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_ends_finished_when_its_time_is_over(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, workers: int
) -> None:
    config = replace(config, training=replace(config.training, workers=workers))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    steps = records(tmp_path / "run", "train")
    assert len(steps) > 20
    assert steps[-1]["seconds"] < 4.0
    rates = [step["lr"] for step in steps]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) > 0.8e-2
    assert rates[-1] < 1e-3
    last = records(tmp_path / "run", "eval")[-1]
    assert last["step"] == steps[-1]["step"]
    assert bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)["finished_before"]


def test_phases_follow_the_clock(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    steps = records(tmp_path / "run", "train")
    sizes = [step["tokens"] - before["tokens"] for before, step in pairwise(steps)]
    short = [size > 300 for size in sizes]  # 16 × 32 tokens, then 4 × 64
    change = short.index(False)
    assert all(short[:change])
    assert not any(short[change:])
    assert 1 < steps[change]["seconds"] < 3.5
    assert steps[change + 1]["epoch"] == steps[change]["epoch"] + 1


def test_an_interrupted_run_goes_on_with_the_rest_of_its_time(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with interrupted(lambda counters: counters.seconds > 1):
        bertie.pretrain(config, small_shards, run, threads=1)
    before = records(run, "train")
    bertie.pretrain(config, small_shards, run, threads=1)
    steps = records(run, "train")
    assert steps[: len(before)] == before
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert 3 < steps[-1]["seconds"] < 4.0
    assert steps[-1]["lr"] < 1e-3


@pytest.mark.parametrize("budget", ["8s", "8.1s", "8.2s", "8.3s"])
def test_a_checkpoint_at_the_end_of_a_phase_is_followed_by_a_new_epoch(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    """The phase ends in a step, or while the checkpoint is written."""
    saved: list[tuple[float, int, int]] = []

    def note(*args: Any) -> None:
        saved.append((args[5].progress, args[5].epoch, args[5].epoch_step))

    monkeypatch.setattr(trainer, "save_state", note)
    config = replace(config, training=replace(config.training, checkpoint_every=1, eval_every=0), budget=budget)
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    first = next(number for number, (progress, *_) in enumerate(saved) if progress >= 0.5)
    assert saved[first][1:] in ((1, 0), (1, 1))
    assert saved[first - 1][1] == 0


def test_an_evaluation_that_would_exceed_the_budget_is_left_out(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations take 1 s here, and are due after every step."""
    now, evaluate = [100.0], sources.evaluate

    def slow(*args: Any) -> Any:
        now[0] += 1.0
        return evaluate(*args)

    def read() -> float:
        now[0] += 0.01
        return now[0]

    for module in (clock, trainer, pretrain):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=read))
    monkeypatch.setattr(sources, "evaluate", slow)
    config = replace(config, training=replace(config.training, eval_every=1, checkpoint_every=0))
    bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)
    steps, evaluations = records(tmp_path / "run", "train"), records(tmp_path / "run", "eval")
    assert 2 < len(evaluations) < len(steps)
    assert evaluations[-1]["step"] == steps[-1]["step"]
    assert steps[-1]["lr"] < 2e-3
    assert now[0] < 104.3


def test_a_run_saves_after_a_part_of_its_time(config: PretrainConfig) -> None:
    minutes = {"30s": 1.0, "30m": 1.5, "24h": 10.0}
    for budget, expected in minutes.items():
        assert replace(config, budget=budget).minutes_between_checkpoints == expected


def test_a_text_that_is_read_too_often_is_a_warning(
    config: PretrainConfig,
    small_shards: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (repetition, feed):
        monkeypatch.setattr(module, "MANY_EPOCHS", 1)
    bertie.pretrain(replace(config, phases=()), small_shards, tmp_path / "few", threads=1)
    assert "the run reads the text" not in capsys.readouterr().err
    bertie.pretrain(replace(config, budget="15s", phases=()), small_shards, tmp_path / "many", threads=1)
    assert capsys.readouterr().err.count("the run reads the text 2 times") == 1


def losses(folder: Path, training: list[float], held_out: list[float]) -> Path:
    """Write the metrics of a run with an evaluation every ten steps, the last one after the last step."""
    folder.mkdir(exist_ok=True)
    records = [{"split": "train", "step": step, "mlm_loss": loss} for step, loss in enumerate(training, 1)]
    records += [{"split": "eval", "step": 10 * number, "mlm_loss": loss} for number, loss in enumerate(held_out, 1)]
    common = {"tokens": 1, "seconds": 1.0, "tokens_per_second": 1.0}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(common | record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize(
    ("epochs", "training", "held_out", "expected"),
    [
        (3.0, [2.0] * 20, [5.0, 7.0], []),  # read rarely
        (9.0, [5.0] * 20, [5.5, 5.2], []),  # better than word frequencies, and still falling
        (9.0, [7.0] * 10 + [4.9] * 10, [5.0, 5.04], []),  # no more than noise
        (9.0, [7.0] * 18 + [2.0] * 2, [5.0, 7.0], ["9 times and memorized it", "training loss 2.00", "6.00"]),
        (9.0, [7.0] * 18 + [2.0] * 2, [5.0, 5.5], ["memorized it", "lowest 5.00 after step 10"]),
        (16.0, [6.75] * 20, [7.0, 7.79], ["16 times, which is too little", "unigram model 6.00"]),
        (16.0, [6.75] * 20, [7.79], ["which is too little", "training loss 6.75, held-out loss 7.79"]),
    ],
)
def test_too_little_text_is_a_warning_that_the_losses_show(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    epochs: float,
    training: list[float],
    held_out: list[float],
    expected: list[str],
) -> None:
    warn_of_overfitting(losses(tmp_path / "run", training, held_out), epochs, 6.0)
    shown = capsys.readouterr().err
    assert all(part in shown for part in expected)
    assert ("memorized" in shown) == any("memorized" in part for part in expected)
    assert bool(shown) == bool(expected)


def test_dry_run_labels_and_plans_as_the_first_steps(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    build = Feed.build

    def watch(feed: Feed, plan: StepPlan) -> Step:
        seen.append(plan.progress)
        return build(feed, plan)

    monkeypatch.setattr(Feed, "build", watch)
    dry_run(config, small_shards, tmp_path / "run", threads=1)
    assert max(seen) < 0.5


def test_a_schedule_that_counts_steps_is_refused(config: PretrainConfig) -> None:
    with pytest.raises(UsageError, match=r"schedule\.warmup is 0"):
        replace(config, schedule=InverseSquareRoot(warmup=0.0))


def test_a_budget_too_small_for_a_step_leaves_no_model(
    config: PretrainConfig, small_shards: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="over before the first step"):
        bertie.pretrain(replace(config, budget="0.001s"), small_shards, tmp_path / "run", threads=1)
    assert not (tmp_path / "run" / "model.safetensors").exists()
