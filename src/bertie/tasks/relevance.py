"""How relevant a text is for a query, according to a task on pairs: what `rerank` reads from its predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bertie.base.errors import UsageError, join_names
from bertie.examples.rows import none_of
from bertie.tasks.encoding import no_relevance
from bertie.tasks.task import Task

POSITIVE = frozenset(
    {"1", "label_1", "yes", "true", "relevant", "positive", "entailment", "duplicate", "equivalent", "match"}
)
"""Names of a class that mean "relevant". label_1: what transformers calls the second of two classes without names."""
OF_ONE_TEXT = "positive"
"""The name in `POSITIVE` that usually is a class of single texts."""


def relevance(task: Task | None, label: str = "") -> Callable[[Any], float] | None:
    """Return `Task.relevance` of a model; None for a task that does not predict for pairs, and without a task."""
    return no_relevance(task, label) if task is None else task.relevance(label)


def class_relevance(task: Task, label: str) -> Callable[[Any], float] | None:
    """Return how to read the probability of the class that means "relevant": `Task.relevance` of a task with classes.

    Args:
        task: The task.
        label: The class. Empty: the one of two classes whose name is in `POSITIVE`. The files of other libraries do not say
            whether a model reads pairs: then two such classes mean that it does, except "positive".

    Raises:
        UsageError: `label` is unknown, or it is unclear which class means "relevant".
    """
    labels = task.labels
    candidates = [label] if label else [name for name in labels if name.lower() in POSITIVE]
    unclear = not label and (len(labels) != 2 or len(candidates) != 1)
    single = task.paired is False or unclear or candidates[0].lower() == OF_ONE_TEXT
    if not label and not task.paired and single:
        return None
    if unclear:
        raise UsageError(f'label: name the class that means "relevant"; the classes are {join_names(labels)}')
    if candidates[0] not in labels:
        raise UsageError(none_of(label, labels, "classes"))
    return lambda prediction: prediction.probabilities[candidates[0]]
