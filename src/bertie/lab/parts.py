"""Parts of the dev examples of a task with scores of their own, and given scores to compare with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.base import config as configuration
from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError, naming
from bertie.finetuning.recipe import FinetuneConfig
from bertie.finetuning.sweep import selection_metric
from bertie.lab.config import LabConfig
from bertie.lab.plan import Plan
from bertie.lab.steps import FinetuneStep
from bertie.tasks.scoring import labeled_examples, training_examples


@dataclass(frozen=True)
class Parts:
    """The parts of the dev examples of a task, and its baselines. A task may have one without the other."""

    of_examples: tuple[str, ...] = ()
    """The part of each example; empty: there are no parts."""
    baselines: tuple[tuple[str, dict[str, float]], ...] = ()
    """Name of a baseline, and its score by part. The key of the whole task is its name."""

    @property
    def names(self) -> list[str]:
        """The parts, in the order in which they occur first."""
        return list(dict.fromkeys(self.of_examples))

    def rows(self, part: str, rows: Float[np.ndarray, "examples K"]) -> Float[np.ndarray, "part_examples K"]:
        """Return the rows of the examples of a part."""
        return rows[np.array([name == part for name in self.of_examples])]


def measure(task: str, part: str) -> str:
    """Return the name of the score of a part, or of the whole task if the part has its name."""
    return task if part == task else f"{task}: {part}"


def read_parts(config: LabConfig, plan: Plan, data: Path) -> dict[str, Parts]:
    """Read the files that `tasks.parts` and `tasks.baselines` name. Tasks without both are left out.

    Args:
        config: The lab file.
        plan: Its plan.
        data: The folder to which the paths in it are relative.

    Raises:
        UsageError: A file is missing, or the score of a task cannot be computed for parts.
        UserError: A file has another form, or another number of lines than there are dev examples.
    """
    found = {}
    for task in config.tasks:
        with naming(f"task {task.name}"):
            parts = Parts(_lines(data / task.parts) if task.parts else ())
            for recipe in _recipes(plan, task.name) if task.parts else ():
                _require_parts(recipe, str(data / task.train), str(data / task.dev), parts)
            if task.baselines:
                parts = Parts(parts.of_examples, _baselines(data / task.baselines, task.name, parts.names))
            if task.parts or task.baselines:
                found[task.name] = parts
    measures = Counter(measure(task, part) for task, parts in found.items() for part in parts.names)
    measures.update(task.name for task in config.tasks)
    if twice := [name for name, count in measures.items() if count > 1]:
        raise UsageError(f"two scores have the name {twice[0]!r}: rename the task or the part")
    return found


def _recipes(plan: Plan, task: str) -> set[FinetuneConfig]:
    """Return the recipes of a task that read and score it in different ways."""
    steps = [plan.steps[cell.tasks[task]] for cell in plan.cells]
    recipes = [step.recipe for step in steps if isinstance(step, FinetuneStep)]
    same = replace(recipes[0], seed=0)
    return {replace(same, task=each.task, metric=each.metric, strict=each.strict) for each in recipes}


def _require_parts(recipe: FinetuneConfig, train: str, dev: str, parts: Parts) -> None:
    """Check that each dev example has a part, and that the score of a part follows from sums over its examples."""
    with console.silenced():
        examples: list[Any] = labeled_examples(recipe.task.reader, dev, recipe.strict)
        task, training = training_examples(recipe.task, train, recipe.strict)
        task: Any = task.fit(training)
    if len(examples) != len(parts.of_examples):
        counts = f"{len(parts.of_examples):,} lines, and {dev} has {len(examples):,} examples"
        raise UserError(f"the file of tasks.parts has {counts}: give one line for each example")
    metric = selection_metric(recipe, task, examples)
    if metric not in task.sums(task.constant_predictions(examples)[0], examples):
        raise UsageError(f"{metric} has no score for parts of the examples: remove tasks.parts, or set another metric")


def _lines(path: Path) -> tuple[str, ...]:
    try:
        lines = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}: check --data, the folder that holds the data of the lab") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if wrong := [number for number, line in enumerate(lines, 1) if not line or not line.isprintable()]:
        raise UserError(f"{path}: line {wrong[0]} is not the name of a part: give one name for each dev example")
    return lines


def _baselines(path: Path, task: str, parts: list[str]) -> tuple[tuple[str, dict[str, float]], ...]:
    """Read {name: {part: score}}, with the name of the task for all of its examples."""
    keys = [task, *parts]
    values = storage.read_json(path, expected="the baselines of a task")
    try:
        baselines: dict[str, dict[str, float]] = configuration.build(dict[str, dict[str, float]], values, "baselines")
    except UsageError as error:
        raise UserError(f"{path}: {error}: give a score for each part") from error
    for name, scores in baselines.items():
        if unknown := [key for key in scores if key not in keys]:
            raise UserError(f"{path}: {name} has a score of {unknown[0]!r}: known are {', '.join(keys)}")
    return tuple(baselines.items())
