from __future__ import annotations

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.small_recipes import fine_tuning

import bertie
from bertie.base.config import load
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import read_checkpoint
from bertie.examples.squad import Answer, Question
from bertie.examples.texts import Example
from bertie.finetuning import sweep as sweeping
from bertie.finetuning.data import load_task_data
from bertie.finetuning.finetune import Finetuned
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.finetuning.sweep import RunResult, Sweep, expand_grid
from bertie.model.model import Model
from bertie.tasks.classify import Classify
from bertie.tasks.predictions import NumberPrediction
from bertie.tasks.regress import Regress
from bertie.tasks.span import Span
from bertie.training.schedules import LinearDecay

CONFIG = fine_tuning(1, restarts=3)
TRAINING = CONFIG.training


def finetune(config: FinetuneConfig, rows: Any, start: Path, out: Path | None = None) -> Finetuned:
    return bertie.finetune(config, rows[:40], start, out, dev=rows[40:], threads=1)


@pytest.fixture(scope="module")
def swept(rows: list[dict[str, str]], start: Path, tmp_path_factory: pytest.TempPathFactory) -> Finetuned:
    """Three runs. Copy their folder to change it."""
    return finetune(CONFIG, rows, start, tmp_path_factory.mktemp("swept") / "run")


def done(found: Finetuned) -> Sweep:
    assert found.sweep is not None
    return found.sweep


def without_time(found: Sweep) -> list[RunResult]:
    return [replace(result, seconds=0.0) for result in found.results]


def test_expand_grid_combines_all_values_and_seeds() -> None:
    grid = GridSearch(learning_rate=(1e-5, 2e-5), epochs=(1, 3))
    found = expand_grid(replace(CONFIG, grid=grid, seed=7))
    assert len(found) == 2 * 2 * 3
    places = {(c.training.learning_rate, c.training.batch_size, c.training.epochs, c.seed) for c in found.values()}
    assert places == {(rate, 8, epochs, seed) for rate in (1e-5, 2e-5) for epochs in (1, 3) for seed in (7, 8, 9)}
    assert all(cell.restarts == 1 and cell.grid == GridSearch() for cell in found.values())


def test_restart_equals_a_single_run_with_its_seed(rows: list[dict[str, str]], start: Path, swept: Finetuned) -> None:
    found = swept
    alone = [finetune(replace(CONFIG, restarts=1, seed=seed), rows, start) for seed in range(3)]
    assert [result.scores for result in done(found).results] == [run.scores for run in alone]
    assert alone[0].losses != alone[1].losses
    best = done(found).best
    assert found.losses == alone[best.seed].losses
    assert best.selection_scores["accuracy"] == max(
        result.selection_scores["accuracy"] for result in done(found).results
    )
    assert found.scores == best.report_scores
    halves = [best.selection_scores["accuracy"] * 10, best.report_scores["accuracy"] * 10]  # of 20 dev examples
    assert sum(halves) == pytest.approx(best.scores["accuracy"] * 20)


def test_mean_and_standard_deviation_are_over_all_dev_examples(
    rows: list[dict[str, str]], start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [setting] = done(finetune(CONFIG, rows, start)).settings
    assert setting.mean == pytest.approx(np.mean(setting.scores))
    assert setting.sd == pytest.approx(np.std(setting.scores, ddof=1))
    assert len(setting.scores) == setting.runs == 3
    scores = f"accuracy {setting.mean:.4f} ± {setting.sd:.4f} (mean ± sd, 3 runs)"
    assert f"learning rate 0.003, batch size 8, 1 epoch: {scores}" in capsys.readouterr().err


def test_killed_sweep_resumes_where_it_was(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, swept: Finetuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = swept
    trained: list[int] = []

    def tune(config: FinetuneConfig, *rest: Any, stop_at: int | None) -> Any:
        if config.seed == stop_at:
            raise KeyboardInterrupt
        trained.append(config.seed)
        return original(config, *rest)

    original, cut = sweeping.train_run, tmp_path / "cut"
    for stop_at in (1, 2, None):
        monkeypatch.setattr(sweeping, "train_run", lambda *args, stop_at=stop_at: tune(*args, stop_at=stop_at))
        if stop_at is None:
            found = finetune(CONFIG, rows, start, cut)
        else:
            with pytest.raises(KeyboardInterrupt):
                finetune(CONFIG, rows, start, cut)
            assert len({path.parents[2] for path in (cut / "cells").rglob("model.safetensors")}) == 1
    best = done(whole).best.seed
    assert trained in ([0, 1, 2], [0, 1, 2, best])  # the best one is loaded again if an earlier call trained it
    assert not found.losses or best == 2  # without training it again
    assert without_time(done(found)) == without_time(done(whole))
    assert found.scores == whole.scores
    first, second = (torch.cat([p.flatten() for p in each.model.parameters()]) for each in (whole, found))
    assert torch.equal(first, second)


def test_run_folder_holds_the_best_model_and_no_other(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, swept: Finetuned
) -> None:
    assert swept.run
    shutil.copytree(swept.run, tmp_path / "run")
    found, best = swept, done(swept).best
    assert not list((tmp_path / "run" / "cells").rglob("*.safetensors"))
    saved = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert saved["best"] == best.name
    assert json.loads((tmp_path / "run" / "scores.json").read_text()) == found.scores
    model = bertie.load(tmp_path / "run")
    assert model.evaluate(rows[40:])["scores"] == pytest.approx(best.scores)
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page for name in ("Settings", "Runs", "Failed runs", "Report half", "Training of the best run"))
    again = finetune(CONFIG, rows, start, tmp_path / "run")
    assert again.scores == found.scores
    assert without_time(done(again)) == without_time(done(found))
    assert again.losses == []


def test_diverged_run_counts_as_failed(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = replace(TRAINING, epochs=10)
    config = replace(CONFIG, grid=GridSearch(learning_rate=(3e-3, 2e9)), restarts=1, training=long)
    found = done(finetune(config, rows, start, tmp_path / "run"))
    normal, diverged = found.results
    assert (normal.failed, diverged.failed, diverged.scores) == (False, True, {})
    assert found.best is normal
    assert found.settings[1].mean is None
    assert "1 of 2 runs failed: no better" in capsys.readouterr().err
    with pytest.raises(UserError, match="all 2 runs diverged"):
        finetune(replace(config, grid=GridSearch(learning_rate=(1e9, 2e9))), rows, start)


def test_run_that_diverges_in_its_last_steps_is_not_selected(
    rows: list[dict[str, str]], start: Path, tmp_path: Path
) -> None:
    """Too late for ten consecutive skipped steps; in memory and in a folder."""
    examples = [{"text": row["text"], "score": i} for i, row in enumerate(rows)]
    grid, short = GridSearch(learning_rate=(2e9, 3e-3)), replace(TRAINING, epochs=1)
    config = replace(CONFIG, task=Regress(), schedule=LinearDecay(warmup=0.0), restarts=1, training=short, grid=grid)
    for out in (None, tmp_path / "run"):
        found = done(finetune(config, examples, start, out))
        assert [result.scores == {} for result in found.results] == [True, False]
        assert found.best is found.results[1]


def test_seconds_of_a_run_include_earlier_calls(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, passes, clock, late = Model.forward, 0, time.monotonic, 0.0

    def interrupted(model: Model, *args: Any) -> Any:
        nonlocal passes, late
        passes += 1
        if passes == 4:
            late = 10_000.0
            os.kill(os.getpid(), signal.SIGINT)
        return forward(model, *args)

    monkeypatch.setattr(Model, "forward", interrupted)
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late)
    config = replace(CONFIG, restarts=2)
    with pytest.raises(KeyboardInterrupt):
        finetune(config, rows, start, tmp_path / "run")
    first, second = done(finetune(config, rows, start, tmp_path / "run")).results
    assert second.seconds < 10_000 < first.seconds


def test_run_that_learns_nothing_has_failed(
    rows: list[dict[str, str]], start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = replace(TRAINING, learning_rate=1e-30)
    assert done(finetune(replace(CONFIG, training=idle), rows, start)).failed == 3
    assert "3 of 3 runs failed, including the best one: no better" in capsys.readouterr().err
    finetune(replace(CONFIG, training=replace(idle, steps=7), restarts=1), rows, start)
    output = capsys.readouterr().err
    assert "the run failed: its dev scores are no better than a constant prediction's" in output
    stopping = replace(idle, steps=7, patience=1, eval_every=2)
    finetune(replace(CONFIG, training=stopping, restarts=1), rows, start)
    output = capsys.readouterr().err
    assert "after step 4: no held-out loss" in output
    assert "(now 4 steps)" in output


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rate": (1e-5, 1e-5)}, "grid.learning_rate has a value twice"),
        ({"batch_size": (0,)}, "grid.batch_size has 0"),
        ({"epochs": (1, -1)}, "grid.epochs has -1"),
        ({"learning_rate": (float("nan"),)}, "grid.learning_rate has nan"),
        ({"learning_rate": (1e30,)}, "grid.learning_rate has 1e[+]30: values must be from 0 to less than 2.1"),
    ],
)
def test_invalid_grids_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GridSearch(**values)


def test_invalid_selection_and_contradictions_are_refused(rows: list[dict[str, str]], start: Path) -> None:
    with pytest.raises(UsageError, match="metric is 'bleu': choose one of the task's scores: accuracy, f1, matthews"):
        finetune(replace(CONFIG, metric="bleu"), rows, start)
    with pytest.raises(UserError, match="selecting the best of several runs needs at least 2 dev examples"):
        bertie.finetune(CONFIG, rows[:40], start, dev=rows[40:41])
    with pytest.raises(UsageError, match=r"training\.steps and grid\.epochs both set the length of a run"):
        replace(CONFIG, grid=GridSearch(epochs=(1, 2)), training=replace(TRAINING, steps=3))
    with pytest.raises(UsageError, match=r"training\.trackers needs a run folder"):
        bertie.finetune(
            replace(CONFIG, training=replace(TRAINING, trackers=("wandb",))), rows[:40], start, dev=rows[40:]
        )


def test_sweep_does_not_resume_with_other_data(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(config: FinetuneConfig, *rest: Any) -> Any:
        if config.seed == 1:
            raise KeyboardInterrupt
        return original(config, *rest)

    original = sweeping.train_run
    monkeypatch.setattr(sweeping, "train_run", stopped)
    with pytest.raises(KeyboardInterrupt):
        finetune(CONFIG, rows, start, tmp_path / "run")
    monkeypatch.setattr(sweeping, "train_run", original)
    with pytest.raises(UsageError, match="made from other data"):
        finetune(CONFIG, rows[::-1], start, tmp_path / "run")
    finetune(CONFIG, rows, start, tmp_path / "run")
    with pytest.raises(UsageError, match="made from other data"):
        finetune(CONFIG, rows[::-1], start, tmp_path / "run")


def test_fingerprint_includes_all_gold_answers(minilm: Path) -> None:
    """All gold answers of a dev question count for its score, but only the first one is a target."""
    config, checkpoint = load(FinetuneConfig, "span", "finetune"), read_checkpoint(minilm)
    asked = {"question": "who", "context": "the cat sat on the mat", "answers": ["the cat"]}
    data = [
        load_task_data(config, [asked], [dev], checkpoint)
        for dev in (asked, asked, asked | {"answers": ["the cat", "cat"]})
    ]
    assert data[0].fingerprint == data[1].fingerprint != data[2].fingerprint


def test_run_with_small_errors_has_not_failed() -> None:
    dev = [Example("a", None, str(score), "here") for score in (0.0, 0.05, 0.1)]
    task = Regress().fit(dev)
    right, same = (
        {"mse": task.score([NumberPrediction(number) for number in numbers], dev)["mse"]}
        for numbers in ((0, 0.05, 0.1), (0.05,) * 3)
    )
    assert not sweeping.has_failed("mse", right, task, dev)
    assert sweeping.has_failed("mse", same, task, dev)


@pytest.mark.parametrize("rare", [0, 1, 9, 100])
def test_a_run_that_finds_the_rare_class_has_not_failed(rare: int) -> None:
    dev = [Example("a", None, "no" if i >= rare else "yes", "here") for i in range(1000)]
    task = Classify(labels=("no", "yes"))
    assert not sweeping.has_failed("accuracy", {"accuracy": 1.0}, task, dev)
    assert sweeping.has_failed("accuracy", {"accuracy": 1 - max(rare, 1) / 1000}, task, dev)


def test_run_with_a_chance_correlation_has_failed() -> None:
    dev = [Example("a", None, str(score), "here") for score in range(100)]
    task = Regress().fit(dev)
    assert sweeping.has_failed("spearman", {"spearman": 0.19}, task, dev)
    assert not sweeping.has_failed("spearman", {"spearman": 0.21}, task, dev)


def test_an_answer_that_ignores_the_question_has_failed() -> None:
    contexts = [f"The {name} sat on the {name} mat all day long." for name in ("cat", "dog", "cow", "hen")]
    dev = [Question(str(i), "Who sat?", context, (Answer(context[4:7], 4),), "x") for i, context in enumerate(contexts)]
    task = Span()
    never, *first = task.constant_predictions(dev)
    assert [prediction.answer for prediction in never] == [""] * 4
    assert [len(predictions[0].answer.split()) for predictions in first] == [1, 4, 10]
    assert all(p.answer == dev[i].context[p.start : p.end] for predictions in first for i, p in enumerate(predictions))
    best = max(task.score(predictions, dev)["f1"] for predictions in first)  # 4 words, without "the"
    assert best == pytest.approx(0.5)
    assert sweeping.has_failed("f1", {"f1": best + 0.005}, task, dev)
    assert not sweeping.has_failed("f1", {"f1": best + 0.02}, task, dev)


def test_report_half_does_not_influence_selection_or_stopping(rows: list[dict[str, str]], start: Path) -> None:
    """Whatever its labels are, the same run is selected, and it stops at the same step."""
    training = replace(TRAINING, epochs=10, eval_every=2, patience=2)
    config = replace(CONFIG, training=training, restarts=2)
    reports = sweeping.split_dev(rows[40:])[1]
    swapped = [dict(row) for row in rows]
    for i in reports:
        swapped[40 + i]["label"] = {"yes": "no", "no": "yes"}[swapped[40 + i]["label"]]
    first, second = (finetune(config, examples, start) for examples in (rows, swapped))
    assert done(first).best.name == done(second).best.name
    assert first.losses == second.losses
    assert first.scores["accuracy"] == pytest.approx(1 - second.scores["accuracy"])


def test_damaged_results_are_refused(rows: list[dict[str, str]], start: Path, tmp_path: Path, swept: Finetuned) -> None:
    assert swept.run
    shutil.copytree(swept.run, tmp_path / "run")
    (tmp_path / "run" / "sweep.json").write_text("{}")
    with pytest.raises(UserError, match=r"sweep\.json is damaged"):
        finetune(CONFIG, rows, start, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()
    [*_, path] = sorted((tmp_path / "run" / "cells").glob("*/outcome.json"))
    path.write_text("{}")
    with pytest.raises(UserError, match=r"outcome\.json is damaged"):
        finetune(CONFIG, rows, start, tmp_path / "run")


def test_folder_with_runs_is_not_reused_for_another_sweep(
    rows: list[dict[str, str]], start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    finetune(replace(CONFIG, restarts=2), rows, start, tmp_path / "run")
    (tmp_path / "run" / "manifest.json").unlink()  # as if killed before its end
    with pytest.raises(UsageError, match="restarts is 2 there and 3 here"):
        finetune(CONFIG, rows, start, tmp_path / "run")
    monkeypatch.setattr(sweeping, "train_run", stop)
    with pytest.raises(KeyboardInterrupt):
        finetune(CONFIG, rows, start, tmp_path / "new")
    with pytest.raises(KeyboardInterrupt):  # nothing is trained yet, so other settings are allowed
        finetune(replace(CONFIG, metric="f1"), rows, start, tmp_path / "new")
