"""The results of a lab: the scores of every cell, and their means, intervals and differences by row."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.base import storage
from bertie.base.console import plural
from bertie.lab.bootstrap import Estimate, SeedScores, estimate, resampled_scores
from bertie.lab.config import MEAN
from bertie.lab.parts import Parts, measure
from bertie.lab.plan import Cell, Plan
from bertie.lab.steps import RESULT, SUMS, StepOutcome
from bertie.tasks.example_sums import FORMULAS

StepResults = dict[str, StepOutcome]
"""The contents of result.json of each finished step."""


class Score(NamedTuple):
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
    curves: dict[str, tuple[list[float], list[float]]]
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
    """Metric of each task, and of each of its parts."""
    missing: int
    """Number of cells that have not been run."""
    machines: list[str]
    """A sentence about hardware and versions for the steps that have them in common."""
    parts: dict[str, list[str]] = field(default_factory=dict)
    """The measures of the parts of each task that has some."""
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores to compare with: name -> measure -> score."""


SeedsByMeasure = dict[str, list[Score]]
"""Measure -> the score of each seed that has one."""


def collect(plan: Plan, steps: Path, failed: dict[str, str], parts: dict[str, Parts]) -> Results:
    """Read the results of all finished steps.

    Args:
        plan: The plan of the lab.
        steps: The folder of its steps.
        failed: The error of each step that failed.
        parts: The parts and the baselines of tasks.
    """
    paths = {name: steps / name / RESULT for name in plan.steps}
    results = {name: storage.read_json(path) for name, path in paths.items() if path.is_file()}
    scores_of_cells = [_cell_scores(cell, results, steps, parts) for cell in plan.cells]
    names = list(dict.fromkeys(name for scores in scores_of_cells for name in scores))
    by_task = {task: [measure(task, part) for part in of_task.names] for task, of_task in parts.items()}
    known = {name: task for task in plan.cells[0].tasks for name in (task, *by_task.get(task, []))}
    tasks = [name for name in known if name in names]
    order = [name for name in names if name not in (*tasks, MEAN)] + tasks + [MEAN] * (MEAN in names)
    rows: list[VariantRow] = []
    first: SeedsByMeasure = {}
    for variants in plan.rows:
        pairs = zip(plan.cells, scores_of_cells, strict=True)
        of_row = [(cell, scores) for cell, scores in pairs if cell.variants == variants]
        tuned = [scores for _, scores in of_row]
        trained = list({cell.model: scores for cell, scores in of_row}.values())  # seeds share a model: pretrain_seed
        by_measure = {
            name: [scores[name] for scores in (tuned if name in (*tasks, MEAN) else trained) if name in scores]
            for name in order
        }
        rows.append(_row([cell for cell, _ in of_row], by_measure, first, results, failed))
        first = first or by_measure
    metrics = {
        name: results[cell.tasks[task]]["metric"]
        for cell in plan.cells
        for name, task in known.items()
        if cell.tasks[task] in results
    }
    missing = sum(not results.keys() >= {*cell.steps} for cell in plan.cells)
    # A lab may go on elsewhere, or later.
    trained = sorted({name for cell in plan.cells for name in cell.steps} & results.keys())
    machines = Counter(_described(results[name].get("environment")) for name in trained)
    trainings = [f"{plural(count, 'training')}{machine}." for machine, count in machines.items()]
    baselines: dict[str, dict[str, float]] = {}  # one name may have scores of several tasks
    for task, of_task in parts.items():
        for name, scores in of_task.baselines:
            baselines.setdefault(name, {}).update({measure(task, part): score for part, score in scores.items()})
    in_parts = {task: names for task, names in by_task.items() if names}
    return Results(rows, order, metrics, missing, trainings, in_parts, baselines)


def _described(environment: StepOutcome | None) -> str:
    if environment is None:
        return " of an earlier version of bertie, which did not note the machine"
    versions = ", ".join(f"{name} {number}" for name, number in environment["versions"].items())
    commit = f", commit {environment['commit'][:18]}" if environment["commit"] else ""
    hardware = environment["accelerator"] or environment["cpu"]
    return f" in {environment['precision']} with {plural(environment['threads'], 'thread')} on {hardware}; {versions}{commit}"


def _cell_scores(cell: Cell, results: StepResults, steps: Path, parts: dict[str, Parts]) -> dict[str, Score]:
    """Return the scores of a cell by measure."""
    evaluations = results.get(cell.model, {}).get("evaluations") or [{}]
    if cell.checkpoint:  # else the last evaluation counts
        evaluations = [row for row in evaluations if row.get("step") == cell.checkpoint] or [{}]
    scores = {
        name: Score(value)
        for name, value in evaluations[-1].items()
        if name.endswith(("_loss", "_accuracy")) and value is not None
    }
    tasks, of_parts = {}, {}
    for stream, (task, step) in enumerate(cell.tasks.items()):
        if result := results.get(step):
            sums = steps / step / SUMS
            formula = result["formula"]
            samples = resampled_scores(formula, np.load(sums), stream) if formula else None
            tasks[task] = Score(result["scores"][result["metric"]], samples, result["failed"])
            for part in parts[task].names if task in parts else ():
                rows = parts[task].rows(part, np.load(sums))
                value = float(FORMULAS[formula](rows.sum(0, keepdims=True))[0])
                of_parts[measure(task, part)] = Score(value, resampled_scores(formula, rows, stream))
    if len(tasks) == len(cell.tasks) > 1:
        samples = [score.samples for score in tasks.values()]
        mean_samples = None if any(part is None for part in samples) else np.mean(samples, 0)
        tasks[MEAN] = Score(float(np.mean([score.value for score in tasks.values()])), mean_samples)
    return scores | tasks | of_parts


def _row(
    cells: list[Cell], scores: SeedsByMeasure, first: SeedsByMeasure, results: StepResults, failed: dict[str, str]
) -> VariantRow:
    measures = {name: _measured(seeds, first.get(name, [])) for name, seeds in scores.items() if seeds}
    models = [results[cell.model] for cell in cells if cell.model in results]
    seconds = [result["seconds"] for result in models if "seconds" in result]
    errors = [f"seed {cell.seed}: {failed[step]}" for cell in cells for step in cell.steps if step in failed]
    model = models[0] if models else {}
    evaluations = model.get("evaluations", [])
    losses = [name for row in evaluations[-1:] for name in row if name.endswith("_loss")]
    tokens = [row["tokens"] / 1e6 for row in evaluations]
    curves = {name: (tokens, [row[name] for row in evaluations]) for name in losses}
    minutes = float(np.mean(seconds)) / 60 if seconds else None
    size, length = model.get("parameters"), model.get("tokens")
    return VariantRow(cells[0].variants, measures, errors, size, length, minutes, curves)


def _measured(scores: list[Score], first: list[Score]) -> MeasureSummary:
    side = _side(scores)
    return MeasureSummary(
        values=side[0],
        mean=estimate(side),
        sd=float(np.std(side[0], ddof=1)) if len(scores) > 1 else None,
        no_better=sum(score.failed for score in scores),
        difference=estimate(side, _side(first)) if first else None,
    )


def _side(scores: list[Score]) -> SeedScores:
    known = [score.samples for score in scores if score.samples is not None]
    return [score.value for score in scores], np.stack(known, 1) if len(known) == len(scores) else None
