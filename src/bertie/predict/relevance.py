"""How relevant a text is for a query, according to a model that was fine-tuned on pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bertie.errors import UsageError
from bertie.tasks import Classify, Regress, Task
from bertie.tasks.data.rows import join_names, shorten

POSITIVE = frozenset({"1", "yes", "true", "relevant", "positive", "entailment", "duplicate", "equivalent", "match"})
"""Names of a class that mean "relevant"."""


def relevance(task: Task | None, label: str = "") -> Callable[[Any], float] | None:
    """Return how to read the relevance of a pair from a prediction; None if the task does not predict for pairs.

    Args:
        task: The task of the model.
        label: The class whose probability is the relevance. Empty: the one of two classes whose name is in `POSITIVE`.

    Raises:
        UsageError: `label` is unknown, the model has no classes, or it is unclear which class means "relevant".
    """
    if isinstance(task, Classify) and (label or task.paired):
        chosen = label or _positive(task.labels)
        if chosen not in task.labels:
            raise UsageError(f"label {shorten(chosen)!r} is none of the classes, which are {join_names(task.labels)}")
        return lambda prediction: prediction.probabilities[chosen]
    if label:
        raise UsageError(f"label is {shorten(label)!r}, and the model has no classes: omit it")
    if isinstance(task, Regress) and task.paired is not False:
        return lambda prediction: prediction.score
    return None


def _positive(labels: tuple[str, ...]) -> str:
    found = [label for label in labels if label.lower() in POSITIVE]
    if len(labels) != 2 or len(found) != 1:
        raise UsageError(f'label: name the class that means "relevant"; the classes are {join_names(labels)}')
    return found[0]
