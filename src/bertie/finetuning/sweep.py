"""Several fine-tunings on the same examples: restarts, a grid of settings. The best is chosen on one half of the dev
examples and reported on the other, so that choosing does not flatter it."""

from __future__ import annotations

import math
import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertie import config as configuration
from bertie import console, runtime, seeding, storage
from bertie.checkpoints.folder import Checkpoint
from bertie.errors import DivergedError, UsageError, UserError
from bertie.finetuning.data import TaskData
from bertie.finetuning.recipe import FinetuneConfig, Grid
from bertie.finetuning.single_run import TrainedRun, train_run
from bertie.tasks import Task
from bertie.tasks.metrics import CORRELATIONS, LOWER_IS_BETTER
from bertie.training.run_folder import RunFolder

RESULT_FILE = "outcome.json"
MARGIN = 0.01  # a score that is not better than a constant guess by more than this has collapsed; of errors, this share
NOISE = 2.0  # standard errors by which a correlation has to be better than none: one between unrelated numbers has 1/√n


@dataclass(frozen=True)
class RunResult:
    """What came of one run. selection_scores, report_scores: its scores on the half of the dev examples that chooses, and on the
    other; scores: on all of them. All three are empty where the training diverged, which counts as collapsed too.
    seconds: of training, with those before it was stopped."""

    name: str
    learning_rate: float
    batch_size: int
    epochs: int
    seed: int
    scores: dict[str, float]
    selection_scores: dict[str, float]
    report_scores: dict[str, float]
    failed: bool
    seconds: float


@dataclass(frozen=True)
class SettingSummary:
    """The runs of one setting. scores: the metric of each on all dev examples, of those that did not diverge."""

    learning_rate: float
    batch_size: int
    epochs: int
    runs: int
    failed: int
    mean: float | None
    sd: float | None
    scores: list[float]


@dataclass(frozen=True)
class Sweep:
    metric: str
    results: list[RunResult]

    @property
    def best(self) -> RunResult:
        """By the metric on the half that chooses; the first one of equals. Errors: UserError where all diverged."""
        finished = [outcome for outcome in self.results if outcome.scores]
        if not finished:
            raise UserError(
                f"all of {console.plural(len(self.results), 'run')} diverged: lower --training.learning-rate"
            )
        return max(finished, key=lambda outcome: _sign(self.metric) * outcome.selection_scores[self.metric])

    @property
    def failed(self) -> int:
        return sum(outcome.failed for outcome in self.results)

    @property
    def settings(self) -> list[SettingSummary]:
        """In the order of the grid."""
        found: dict[tuple[float, int, int], list[RunResult]] = {}
        for outcome in self.results:
            found.setdefault((outcome.learning_rate, outcome.batch_size, outcome.epochs), []).append(outcome)
        return [self._setting(*place, runs) for place, runs in found.items()]

    def _setting(self, learning_rate: float, batch_size: int, epochs: int, runs: list[RunResult]) -> SettingSummary:
        scores = [run.scores[self.metric] for run in runs if run.scores]
        mean = float(np.mean(scores)) if scores else None
        sd = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
        low = sum(run.failed for run in runs)
        return SettingSummary(learning_rate, batch_size, epochs, len(runs), low, mean, sd, scores)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "metric": self.metric,
            "best": self.best.name,
            "failed": self.failed,
            "settings": [asdict(setting) for setting in self.settings],
            "runs": [asdict(outcome) for outcome in self.results],
        }


def expand_grid(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """Every run of a configuration, by name: each combination of the grid, as often as there are restarts."""
    grid, training = config.grid, config.training
    values = [getattr(grid, name) or (getattr(training, name),) for name in ("learning_rate", "batch_size", "epochs")]
    found = {}
    for rate, batch_size, epochs in product(*values):
        settings = replace(training, learning_rate=rate, batch_size=batch_size, epochs=epochs)
        for seed in range(config.seed, config.seed + config.restarts):
            name = _name(rate, batch_size, epochs, seed)
            found[name] = replace(config, training=settings, seed=seed, grid=Grid(), restarts=1)
    return found


def sweep(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None
) -> tuple[TrainedRun, Sweep]:
    """Every run, and the best one's model. In a folder, cells/NAME holds a run's metrics and outcome.json; of the models only
    the best so far stays on disk. Runs that are there already are not repeated."""
    halves, metric = split_dev(data.dev), selection_metric(config, data.task, data.dev)
    asked = config.training.precision
    precision = run.precision(asked) if run else runtime.resolve_precision(asked, runtime.device())
    todo = expand_grid(replace(config, training=replace(config.training, precision=precision)))
    folders = {name: run.path / "cells" / name if run else None for name in todo}
    known = {name: _read_outcome(folder, metric) for name, folder in folders.items() if folder is not None}
    found = {name: outcome for name, outcome in known.items() if outcome is not None}
    held: dict[str, TrainedRun] = {}
    for number, (name, settings) in enumerate(todo.items(), start=1):
        if name in found:
            continue
        console.info(f"run {number} of {len(todo)}: {name}")
        tuned, found[name] = _measured(name, settings, metric, data, checkpoint, folders[name], halves)
        so_far = Sweep(metric, list(found.values()))
        if tuned is not None and so_far.best.name == name:
            held = {name: tuned}
        if run and found[name].scores:
            delete_checkpoints(run.path, but=so_far.best)
    done = Sweep(metric, [found[name] for name in todo])
    best = done.best.name
    if best not in held:  # it was trained by an earlier call, so that this one finds it at its last step
        console.info(f"fetching {best}, the best")
        held = {best: _run(todo[best], data, checkpoint, folders[best], halves[0])}
    return held[best], done


def read_sweep(run: Path) -> Sweep:
    """Of a finished run folder. Errors: UserError where its sweep.json is damaged."""
    path = run / "sweep.json"
    told = storage.read_json(path)
    try:
        metric = configuration.build(str, told["metric"], "metric")
        found = Sweep(metric, [_outcome(each, metric) for each in told["runs"]])
        if not any(outcome.scores for outcome in found.results):
            raise ValueError
        return found
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise UserError(f"{path} is damaged: restore it, or give another --out to start over") from error


def has_failed(metric: str, scores: dict[str, float], task: Task, dev: list[Any]) -> bool:
    """Whether scores on dev examples are no better than those of saying the same of all of them."""
    sign = _sign(metric)
    floor = max(sign * task.score(constant, dev)[metric] for constant in task.constant_predictions(dev))
    margin = MARGIN * (-floor if metric in LOWER_IS_BETTER else 1)
    if metric in CORRELATIONS:
        margin = max(margin, NOISE / math.sqrt(len(dev)))
    return sign * scores[metric] - floor <= margin


def selection_metric(config: FinetuneConfig, task: Task, dev: list[Any]) -> str:
    """Errors: UsageError for a score that the task does not have, or of several runs one of the halves."""
    parts = [dev] if len(expand_grid(config)) == 1 else [dev, *([dev[i] for i in half] for half in split_dev(dev))]
    scores = [list(task.score(task.constant_predictions(part)[0], part)) for part in parts]
    known = [name for name in scores[0] if all(name in each for each in scores)]
    if config.metric and config.metric not in known:
        raise UsageError(f"metric is {config.metric!r}, and this task has {', '.join(known)}")
    return config.metric or (task.metric if task.metric in known else known[0])


def split_dev(dev: list[Any]) -> list[np.ndarray]:
    """The dev examples that choose, and those that report: int64, sorted, the same in every sweep. Errors: UserError."""
    if len(dev) < 2:
        raise UserError("one dev example cannot choose among runs and judge the chosen one: give more")
    order = seeding.generator(0, seeding.HALVES).permutation(len(dev))
    return [np.sort(order[: len(dev) // 2]), np.sort(order[len(dev) // 2 :])]


def _measured(
    name: str,
    config: FinetuneConfig,
    metric: str,
    data: TaskData,
    checkpoint: Checkpoint,
    folder: Path | None,
    halves: list[np.ndarray],
) -> tuple[TrainedRun | None, RunResult]:
    """One run, and outcome.json of it; no model where it diverged."""
    started, settings = time.monotonic(), config.training
    place = (name, settings.learning_rate, settings.batch_size, settings.epochs, config.seed)
    try:
        tuned = _run(config, data, checkpoint, folder, halves[0])
    except DivergedError as error:
        console.warn(f"{name}: {error}")
        tuned, outcome = None, RunResult(*place, {}, {}, {}, True, round(time.monotonic() - started, 3))
    else:
        everything = np.arange(len(data.dev))
        scores, selection_scores, report_scores = (_scores(tuned, data, part) for part in (everything, *halves))
        low = has_failed(metric, scores, tuned.task, data.dev)
        outcome = RunResult(*place, scores, selection_scores, report_scores, low, round(tuned.seconds, 3))
        console.info(f"{name}: {metric} {scores[metric]:.4f}" + ", no better than a constant guess" * low)
    if folder:
        storage.write_json(folder / RESULT_FILE, asdict(outcome))
    return tuned, outcome


def _run(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, folder: Path | None, calibrate_on: np.ndarray
) -> TrainedRun:
    threads = torch.get_num_threads()
    # A frozen encoder's head is sooner trained again than the whole model is written; patience goes back to a checkpoint.
    last_checkpoint = not config.frozen or config.training.patience > 0
    with RunFolder(folder, configuration.plain(config), threads) if folder else nullcontext() as run:
        return train_run(config, data, checkpoint, run, calibrate_on, last_checkpoint)


def _scores(tuned: TrainedRun, data: TaskData, part: np.ndarray) -> dict[str, float]:
    return tuned.task.score([tuned.predictions[i] for i in part], [data.dev[i] for i in part])


def delete_checkpoints(run: Path, but: RunResult | None = None) -> None:
    """Of the runs that are done: all that is still needed is in their outcome.json. but: one that keeps its model."""
    for cell in (path.parent for path in (run / "cells").glob(f"*/{RESULT_FILE}")):
        storage.remove_leftovers(cell)
        if (cell / "checkpoints").is_dir() and (but is None or cell.name != but.name):
            doomed = cell / f".checkpoints.tmp-{os.getpid()}"  # half removed must not look like one to go on from
            os.rename(cell / "checkpoints", doomed)
            shutil.rmtree(doomed)


def _read_outcome(folder: Path, metric: str) -> RunResult | None:
    """Errors: UserError where the file is damaged."""
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    values = storage.read_json(path)
    try:
        found = _outcome(values, metric)
        if found.name != folder.name:
            raise ValueError(found.name)
        return found
    except (ValueError, UsageError) as error:
        raise UserError(f"{path} is damaged: remove it, and the run is done again") from error


def _outcome(values: Any, metric: str) -> RunResult:
    """Errors: UsageError, ValueError for what is none. Of other metrics than that of the sweep a half may have fewer."""
    found = configuration.build(RunResult, values, "run")
    parts = (found.scores, found.selection_scores, found.report_scores)
    if found.name != _name(found.learning_rate, found.batch_size, found.epochs, found.seed):
        raise ValueError(found.name)
    if any(parts) and not all(metric in part for part in parts):
        raise ValueError(metric)
    if not all(map(math.isfinite, (found.seconds, *(value for part in parts for value in part.values())))):
        raise ValueError(parts)
    return found


def _name(learning_rate: float, batch_size: int, epochs: int, seed: int) -> str:
    return f"rate-{float(learning_rate)}-batch-{batch_size}-epochs-{epochs}-seed-{seed}"


def _sign(metric: str) -> int:
    return -1 if metric in LOWER_IS_BETTER else 1
