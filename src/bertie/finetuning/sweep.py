"""Several runs on the same examples: restarts with other random seeds, and a grid of settings.

The best run is selected on one half of the dev examples, the selection half. Its scores are reported on the other half,
the report half, because the best of several scores is biased upwards.
"""

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

from bertie.base import config as configuration
from bertie.base import console, seeding, storage
from bertie.base.errors import DivergedError, UsageError, UserError
from bertie.checkpoints.read import Checkpoint
from bertie.finetuning.data import TaskData
from bertie.finetuning.recipe import FinetuneConfig, GridSearch
from bertie.finetuning.single_run import TrainedRun, train_run
from bertie.tasks.metrics import CORRELATIONS, sign
from bertie.tasks.task import Task
from bertie.training.run_folder import RunFolder, run_precision

RESULT_FILE = "outcome.json"
MARGIN = 0.01
"""A run has failed if it beats a constant prediction by no more than this. It is relative for errors such as mse, and for
scores above 0.9 to what is left to 1."""
NOISE = 2.0  # standard errors that a correlation must exceed 0 by: the correlation of n unrelated numbers has 1/√n


@dataclass(frozen=True)
class RunResult:
    """The result of one run. All scores are empty if it diverged; a diverged run counts as failed."""

    name: str
    """The folder of the run in cells/."""
    learning_rate: float
    """The peak learning rate."""
    batch_size: int
    """Examples per optimizer step."""
    epochs: int
    """Passes over the training examples."""
    seed: int
    """The random seed."""
    scores: dict[str, float]
    """Scores on all dev examples."""
    selection_scores: dict[str, float]
    """Scores on the selection half."""
    report_scores: dict[str, float]
    """Scores on the report half."""
    failed: bool
    """Whether the run is no better than a constant prediction."""
    seconds: float
    """Duration of the training, including the time before an interruption."""


@dataclass(frozen=True)
class SettingSummary:
    """The runs of one setting, which differ in the random seed."""

    learning_rate: float
    """The peak learning rate."""
    batch_size: int
    """Examples per optimizer step."""
    epochs: int
    """Passes over the training examples."""
    runs: int
    """Number of runs."""
    failed: int
    """Number of failed runs."""
    mean: float | None
    """Mean of `scores`; None if all runs diverged."""
    sd: float | None
    """Standard deviation of `scores`; None for fewer than two."""
    scores: list[float]
    """The metric on all dev examples of each run that did not diverge."""

    @property
    def name(self) -> str:
        """The setting, for people."""
        epochs = console.plural(self.epochs, "epoch")
        return f"learning rate {self.learning_rate:g}, batch size {self.batch_size}, {epochs}"


@dataclass(frozen=True)
class Sweep:
    """The results of several runs."""

    metric: str
    """The score that selects the best run."""
    results: list[RunResult]
    """The results of all runs, in the order of the grid."""

    @property
    def best(self) -> RunResult:
        """The run with the best metric on the selection half, the first one in a tie.

        Raises:
            UserError: All runs diverged.
        """
        finished = [result for result in self.results if result.scores]
        if not finished:
            raise UserError(f"all {len(self.results)} runs diverged: lower --training.learning-rate")
        return max(finished, key=lambda result: sign(self.metric) * result.selection_scores[self.metric])

    @property
    def failed(self) -> int:
        """The number of failed runs."""
        return sum(result.failed for result in self.results)

    @property
    def settings(self) -> list[SettingSummary]:
        """The summary of each setting, in the order of the grid."""
        groups: dict[tuple[float, int, int], list[RunResult]] = {}
        for result in self.results:
            groups.setdefault((result.learning_rate, result.batch_size, result.epochs), []).append(result)
        summaries = []
        for setting, runs in groups.items():
            scores = [run.scores[self.metric] for run in runs if run.scores]
            mean = float(np.mean(scores)) if scores else None
            sd = float(np.std(scores, ddof=1)) if len(scores) > 1 else None
            summaries.append(SettingSummary(*setting, len(runs), sum(run.failed for run in runs), mean, sd, scores))
        return summaries

    def to_json(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        return {
            "metric": self.metric,
            "best": self.best.name,
            "failed": self.failed,
            "settings": [asdict(setting) for setting in self.settings],
            "runs": [asdict(result) for result in self.results],
        }


def expand_grid(config: FinetuneConfig) -> dict[str, FinetuneConfig]:
    """Return the configuration of every run by its name: each combination of the grid, once per restart."""
    grid, training = config.grid, config.training
    values = [getattr(grid, name) or (getattr(training, name),) for name in ("learning_rate", "batch_size", "epochs")]
    runs = {}
    for rate, batch_size, epochs in product(*values):
        settings = replace(training, learning_rate=rate, batch_size=batch_size, epochs=epochs)
        for seed in range(config.seed, config.seed + config.restarts):
            name = f"rate-{float(rate)}-batch-{batch_size}-epochs-{epochs}-seed-{seed}"
            runs[name] = replace(config, training=settings, seed=seed, grid=GridSearch(), restarts=1)
    return runs


def sweep(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, run: RunFolder | None
) -> tuple[TrainedRun, Sweep]:
    """Train every run and return the best one with its model, and the results of all.

    In a run folder, cells/NAME holds the metrics and outcome.json of each run. Only the best model so far is kept on
    disk. Runs that have an outcome.json are not repeated.

    Args:
        config: The configuration with its grid and restarts.
        data: The tokenized examples.
        checkpoint: The checkpoint to start from.
        run: The run folder; None to keep everything in memory.

    Raises:
        UserError: All runs diverged, or an outcome.json is damaged.
    """
    metric = selection_metric(config, data.task, data.dev)
    precision = run_precision(run, config.training.precision)
    todo = expand_grid(replace(config, training=replace(config.training, precision=precision)))
    folders = {name: run.path / "cells" / name if run else None for name in todo}
    recorded = {name: _read_result(folder) for name, folder in folders.items() if folder is not None}
    results = {name: result for name, result in recorded.items() if result is not None}
    in_memory: dict[str, TrainedRun] = {}  # the best run so far, if this call trained it
    for number, (name, settings) in enumerate(todo.items(), start=1):
        if name in results:
            continue
        console.info(f"run {number} of {len(todo)}: {name}")
        tuned, results[name] = _train_and_score(name, settings, metric, data, checkpoint, folders[name])
        so_far = Sweep(metric, list(results.values()))
        if tuned is not None and so_far.best.name == name:
            in_memory = {name: tuned}
        if run and results[name].scores:
            delete_checkpoints(run.path, but=so_far.best)
    done = Sweep(metric, [results[name] for name in todo])
    best = done.best.name
    if best not in in_memory:  # an earlier call trained it: resuming it restores the model after its last step
        console.info(f"loading {best}, the best run")
        in_memory = {best: _run(todo[best], data, checkpoint, folders[best], split_dev(data.dev)[0])}
    return in_memory[best], done


def read_sweep(run: Path) -> Sweep:
    """Read sweep.json of a finished run folder. Raises UserError if it is damaged."""
    path = run / "sweep.json"
    values = storage.read_json(path)
    try:
        results = [configuration.build(RunResult, run, "run") for run in values["runs"]]
        return Sweep(configuration.build(str, values["metric"], "metric"), results)
    except (KeyError, UsageError) as error:
        raise UserError(f"{path} is damaged: restore it, or choose another --out to start over") from error


def has_failed(metric: str, scores: dict[str, float], task: Task, dev: list[Any]) -> bool:
    """Return whether a run is no better than a constant prediction, or its Spearman correlation is not above 0.

    Args:
        metric: The score to compare.
        scores: The scores of the run on the dev examples.
        task: The fitted task.
        dev: The dev examples.
    """
    if scores.get("spearman", 1.0) <= 0:
        return True
    floor = constant_score(metric, task, dev)
    margin = MARGIN * (abs(floor) if sign(metric) < 0 else min(1, 10 * (1 - floor)))
    if metric in CORRELATIONS:
        margin = max(margin, NOISE / math.sqrt(len(dev)))
    return sign(metric) * (scores[metric] - floor) <= margin and sign(metric) * scores[metric] != 1


def constant_score(metric: str, task: Task, dev: list[Any]) -> float:
    """Return the best score that a constant prediction has. Arguments as of `has_failed`."""
    scores = [task.score(constant, dev)[metric] for constant in task.constant_predictions(dev)]
    return max(scores, key=lambda score: sign(metric) * score)


def selection_metric(config: FinetuneConfig, task: Task, dev: list[Any]) -> str:
    """Return the name of the score that selects the best run: the configured one, or the task's default.

    Raises:
        UsageError: The task does not have the configured score on these examples or, for several runs, on either half.
        UserError: There are several runs and only one dev example.
    """
    parts = [dev] if len(expand_grid(config)) == 1 else [dev, *([dev[i] for i in half] for half in split_dev(dev))]
    scores = [list(task.score(task.constant_predictions(part)[0], part)) for part in parts]
    known = [name for name in scores[0] if all(name in names for names in scores)]
    if config.metric and config.metric not in known:
        raise UsageError(f"metric is {config.metric!r}: choose one of the task's scores: {', '.join(known)}")
    return config.metric or (task.metric if task.metric in known else known[0])


def split_dev(dev: list[Any]) -> list[np.ndarray]:
    """Split the dev examples into the selection half and the report half.

    Returns:
        The indices of each half, int64, sorted. They depend only on the number of examples.

    Raises:
        UserError: There is only one example.
    """
    if len(dev) < 2:
        raise UserError("selecting the best of several runs needs at least 2 dev examples: add more")
    order = seeding.generator(0, seeding.HALVES).permutation(len(dev))
    return [np.sort(order[: len(dev) // 2]), np.sort(order[len(dev) // 2 :])]


def _train_and_score(
    name: str, config: FinetuneConfig, metric: str, data: TaskData, checkpoint: Checkpoint, folder: Path | None
) -> tuple[TrainedRun | None, RunResult]:
    """Train one run and write its outcome.json. Returns None instead of the model if it diverged."""
    started, settings, halves = time.monotonic(), config.training, split_dev(data.dev)
    place = (name, settings.learning_rate, settings.batch_size, settings.epochs, config.seed)
    tuned, scores, failed = None, [{}, {}, {}], True
    try:
        tuned = _run(config, data, checkpoint, folder, halves[0])
    except DivergedError as error:
        console.warn(f"{name}: {error}")
    else:
        parts = [np.arange(len(data.dev)), *halves]
        scores = [tuned.task.score([tuned.predictions[i] for i in part], [data.dev[i] for i in part]) for part in parts]
        failed = has_failed(metric, scores[0], tuned.task, data.dev)
        console.info(f"{name}: {metric} {scores[0][metric]:.4f}" + ", no better than a constant prediction" * failed)
    seconds = round(tuned.seconds if tuned else time.monotonic() - started, 3)
    result = RunResult(*place, scores[0], scores[1], scores[2], failed, seconds)
    if folder:
        storage.write_json(folder / RESULT_FILE, asdict(result))
    return tuned, result


def _run(
    config: FinetuneConfig, data: TaskData, checkpoint: Checkpoint, folder: Path | None, calibrate_on: np.ndarray
) -> TrainedRun:
    threads = torch.get_num_threads()
    # Training the head of a frozen encoder again is faster than writing the model. Early stopping needs its checkpoint.
    last_checkpoint = not config.frozen or config.training.patience > 0
    with RunFolder(folder, configuration.plain(config), threads) if folder else nullcontext() as run:
        return train_run(config, data, checkpoint, run, calibrate_on, last_checkpoint)


def delete_checkpoints(run: Path, but: RunResult | None = None) -> None:
    """Delete the checkpoints of runs that have an outcome.json.

    Args:
        run: The run folder.
        but: A run whose checkpoints are kept.
    """
    for cell in (path.parent for path in (run / "cells").glob(f"*/{RESULT_FILE}")):
        storage.remove_leftovers(cell)
        if (cell / "checkpoints").is_dir() and (but is None or cell.name != but.name):
            # A half-deleted folder must not look like checkpoints to resume from.
            doomed = cell / f".checkpoints.tmp-{os.getpid()}"
            os.rename(cell / "checkpoints", doomed)
            shutil.rmtree(doomed)


def _read_result(folder: Path) -> RunResult | None:
    """Read outcome.json of a run, or return None if there is none. Raises UserError if it is damaged."""
    path = folder / RESULT_FILE
    if not path.is_file():
        return None
    try:
        return configuration.build(RunResult, storage.read_json(path), "run")
    except UsageError as error:
        raise UserError(f"{path} is damaged: delete it to repeat the run") from error
