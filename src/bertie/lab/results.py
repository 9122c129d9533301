"""The results of a lab: the scores of every cell, and their means, intervals and differences by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertie import storage
from bertie.console import plural
from bertie.lab.bootstrap import Estimate, difference, estimate, resampled_scores
from bertie.lab.config import MEAN
from bertie.lab.plan import Cell, Plan
from bertie.lab.steps import RESULT, SUMS


@dataclass(frozen=True, eq=False)
class Score:
    """One measure of one cell."""

    value: float
    samples: np.ndarray | None = None
    """The score on every sample of the dev examples; None for a loss of pre-training."""
    failed: bool = False
    """Whether the run is no better than a constant prediction."""


@dataclass(frozen=True)
class MeasureSummary:
    """One measure of one row."""

    values: list[float]
    """The score of each seed that has one."""
    mean: Estimate
    sd: float | None
    """Standard deviation over seeds; None for a single one."""
    no_better: int
    """Number of runs that are no better than a constant prediction."""
    difference: Estimate | None
    """Difference to the first row; None: this is the first row, or it lacks this measure."""


@dataclass(frozen=True)
class VariantRow:
    """One combination of variants."""

    variants: tuple[str, ...]
    measures: dict[str, MeasureSummary]
    failed: list[str]
    """Errors of cells that have no result."""
    parameters: int | None
    """Number of weights of the model."""
    tokens: int | None
    """Tokens of pre-training."""
    minutes: float | None
    """Mean duration of pre-training."""
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    """Held-out losses of the first seed: name -> (million tokens, nats)."""

    @property
    def name(self) -> str:
        """The name in charts."""
        return ", ".join(self.variants)


@dataclass(frozen=True)
class Results:
    """The results of a lab, finished or not."""

    rows: list[VariantRow]
    measures: list[str]
    """All measures: the losses and accuracies of pre-training, then the tasks."""
    tasks: dict[str, str]
    """Metric of each task."""
    missing: int
    """Number of cells that have not been run."""
    machines: list[str]
    """A sentence about hardware and versions for the steps that have them in common."""


def collect(plan: Plan, steps: Path, failed: dict[str, str]) -> Results:
    """Read the results of all finished steps.

    Args:
        plan: The plan of the lab.
        steps: The folder of its steps.
        failed: The error of each step that failed.
    """
    found = [_cell_scores(cell, steps) for cell in plan.cells]
    names = list(dict.fromkeys(name for scores in found for name in scores))
    tasks = [name for name in names if name in plan.cells[0].tasks]
    order = [name for name in names if name not in (*tasks, MEAN)] + tasks + [MEAN] * (MEAN in names)
    rows: list[VariantRow] = []
    first: dict[str, list[Score]] = {}
    for variants in plan.rows:
        own = [(cell, scores) for cell, scores in zip(plan.cells, found, strict=True) if cell.variants == variants]
        by_measure = {name: [scores[name] for _, scores in own if name in scores] for name in order}
        rows.append(_row(variants, [cell for cell, _ in own], by_measure, first, steps, failed))
        first = first or by_measure
    metrics = {
        task: result["metric"]
        for cell in plan.cells
        for task, step in cell.tasks.items()
        if (result := _result(steps, step))
    }
    missing = sum(not all(_result(steps, step) for step in (cell.model, *cell.tasks.values())) for cell in plan.cells)
    return Results(rows, order, metrics, missing, _machines(plan, steps))


def _machines(plan: Plan, steps: Path) -> list[str]:
    """Describe on which hardware and with which versions the models were trained. A lab may go on elsewhere, or later."""
    trained = {name for cell in plan.cells for name in (cell.model, *cell.tasks.values())}
    results = [result for name in sorted(trained) if (result := _result(steps, name))]
    counts = Counter(_described(result.get("environment")) for result in results)
    return [f"{plural(count, 'training')}{machine}." for machine, count in counts.items()]


def _described(environment: dict[str, Any] | None) -> str:
    if environment is None:
        return " of an earlier version of bertie, which did not note the machine"
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    commit = f", commit {environment['commit'][:18]}" if environment["commit"] else ""
    hardware = environment["accelerator"] or environment["cpu"]
    return f" in {environment['precision']} with {plural(environment['threads'], 'thread')} on {hardware}; {versions}{commit}"


def _result(steps: Path, step: str) -> dict[str, Any] | None:
    path = steps / step / RESULT
    return storage.read_json(path) if path.is_file() else None


def _cell_scores(cell: Cell, steps: Path) -> dict[str, Score]:
    """Return the scores of a cell by measure."""
    scores = {}
    evaluation = _evaluation(_result(steps, cell.model) or {}, cell.checkpoint)
    for name, value in evaluation.items():
        if name.endswith(("_loss", "_accuracy")) and value is not None:
            scores[name] = Score(value)
    tasks = {}
    for stream, (task, step) in enumerate(cell.tasks.items()):
        if result := _result(steps, step):
            samples, sums = None, steps / step / SUMS
            if result["formula"]:
                samples = resampled_scores(result["formula"], np.load(sums), stream)
            tasks[task] = Score(result["scores"][result["metric"]], samples, result["failed"])
    if len(tasks) == len(cell.tasks) > 1:
        parts = list(tasks.values())
        samples = [part.samples for part in parts]
        known = None if any(each is None for each in samples) else np.mean(samples, 0)
        tasks[MEAN] = Score(float(np.mean([part.value for part in parts])), known)
    return scores | tasks


def _evaluation(result: dict[str, Any], checkpoint: int) -> dict[str, Any]:
    """Return the evaluation on held-out documents after so many steps (0: the last one), if there is one."""
    evaluations = result.get("evaluations") or [{}]
    if not checkpoint:
        return evaluations[-1]
    return next((each for each in evaluations if each.get("step") == checkpoint), {})


def _row(
    variants: tuple[str, ...],
    cells: list[Cell],
    scores: dict[str, list[Score]],
    first: dict[str, list[Score]],
    steps: Path,
    failed: dict[str, str],
) -> VariantRow:
    measures = {name: _measured(each, first.get(name, [])) for name, each in scores.items() if each}
    models = [result for cell in cells if (result := _result(steps, cell.model))]
    seconds = [result["seconds"] for result in models if "seconds" in result]
    errors = [
        f"seed {cell.seed}: {failed[s]}" for cell in cells for s in (cell.model, *cell.tasks.values()) if s in failed
    ]
    evaluations = models[0]["evaluations"] if models else []
    losses = [name for name in (evaluations[-1] if evaluations else {}) if name.endswith("_loss")]
    curves = {
        name: ([each["tokens"] / 1e6 for each in evaluations], [each[name] for each in evaluations]) for name in losses
    }
    return VariantRow(
        variants,
        measures,
        errors,
        parameters=models[0]["parameters"] if models else None,
        tokens=models[0].get("tokens") if models else None,
        minutes=float(np.mean(seconds)) / 60 if seconds else None,
        curves=curves,
    )


def _measured(scores: list[Score], first: list[Score]) -> MeasureSummary:
    values = [score.value for score in scores]
    return MeasureSummary(
        values=values,
        mean=estimate(values, _stacked(scores)),
        sd=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        no_better=sum(score.failed for score in scores),
        difference=difference(values, [s.value for s in first], _stacked(scores), _stacked(first)) if first else None,
    )


def _stacked(scores: list[Score]) -> np.ndarray | None:
    """Return the scores of all seeds on every sample, [SAMPLES, seeds]."""
    known = [score.samples for score in scores if score.samples is not None]
    return np.stack(known, 1) if len(known) == len(scores) else None
