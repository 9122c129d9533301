"""Functions of tasks with one class per example: `Classify` and `Relate` name them as their methods, or call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from bertie.base.console import percent
from bertie.base.errors import UsageError, UserError, first_few, shorten
from bertie.base.report import TextSpan
from bertie.examples.labels import class_of
from bertie.examples.rows import Row, none_of, parse_label
from bertie.tasks.encoding import softmax
from bertie.tasks.evaluation.calibration import choice_calibration
from bertie.tasks.evaluation.findings import Evaluation, Finding, class_findings
from bertie.tasks.evaluation.passages import Passage
from bertie.tasks.prediction_files import answer_of
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.task import Task

MOST_ALONE = 10
"""Examples that may all have different labels, as in a first try."""
ADD_OTHERS = "Add examples with other labels, or choose another column with --task.label"


class LabeledExample(Protocol):
    """An example with one label, or without."""

    @property
    def label(self) -> str | None: ...
    @property
    def source(self) -> str: ...


def classes_of(labels: tuple[str, ...], examples: Sequence[LabeledExample]) -> tuple[str, ...]:
    """Return the classes that a task has set, or else the labels of its training examples, sorted.

    Raises:
        UserError: A label is missing, all are equal, or each is another one.
        UsageError: The task has set a single class.
    """
    if missing := [example.source for example in examples if example.label is None]:
        raise UserError(f"{missing[0]}: no label to train on; add it or remove the example")
    if len(labels) == 1:
        only = shorten(labels[0])
        raise UsageError(f"task.labels names one class, {only!r}: name all classes, or omit it to detect them")
    classes = labels or tuple(sorted({str(example.label) for example in examples}))
    if len(classes) < 2:
        only = f"{shorten(min(classes))!r} ({examples[0].source} …)"
        raise UserError(f"every example has the label {only}: nothing to learn", ADD_OTHERS)
    if not labels and len(classes) == len(examples) > MOST_ALONE:
        each = f"{examples[0].source} …: {first_few(map(repr, map(shorten, classes)), len(classes), ', ')}"
        remedy = "For scores use regress; for classes choose another column with --task.label, or pass --task.labels"
        raise UserError(f"every example has a label of its own ({each})", remedy)
    return classes


def require_classes(labels: tuple[str, ...], examples: Sequence[LabeledExample], noun: str = "classes") -> None:
    """Raise UserError for the first example whose label is none of the classes, or that has no label."""
    known = set(labels)
    for example in examples:
        if example.label not in known:
            raise UserError(f"{example.source}: {none_of(example.label, labels, noun)}")


def labels_in(rows: list[Row], examples: Sequence[LabeledExample]) -> tuple[str, ...]:
    """Return the classes that have a probability in the first prediction, or else the gold labels."""
    gold = {example.label for example in examples if example.label is not None}
    return named_labels(rows) or tuple(sorted(gold))


def named_labels(rows: list[Row]) -> tuple[str, ...]:
    """Return the labels that have a probability in the first prediction."""
    probabilities = rows[0].values.get("probabilities") if rows else None
    return tuple(probabilities) if isinstance(probabilities, dict) else ()


def most_probable(task: Task, logits_C: np.ndarray) -> ClassPrediction:
    """Return the most probable class from the outputs of the head, float32 [C]."""
    probabilities = {label: float(p) for label, p in zip(task.labels, softmax(logits_C), strict=True)}
    return ClassPrediction(task.labels[int(logits_C.argmax())], probabilities)


def read_class(
    labels: tuple[str, ...],
    values: dict[str, Any],
    place: str,
    noun: str = "classes",
    name: Callable[[str], str] = str,
) -> ClassPrediction:
    """Return the predicted class of a row. noun: of the classes, for messages; name: how to write a class."""
    label = parse_label(answer_of(values, "label", place), "label", place)
    predicted = label and class_of(name(label), labels)
    if predicted not in labels:
        raise UserError(f"{place}: {none_of(predicted, labels, noun)}; name all {noun} with --task.labels")
    return ClassPrediction(predicted, {})


def constant_classes(task: Task, examples: list[Any]) -> list[list[ClassPrediction]]:
    """Return one baseline per class: always this class. It is `Task.constant_predictions`."""
    certain = [ClassPrediction(label, {name: float(name == label) for name in task.labels}) for label in task.labels]
    return [[prediction] * len(examples) for prediction in certain]


def gold_and_predicted(
    predictions: list[ClassPrediction], examples: Sequence[LabeledExample]
) -> tuple[list[str], list[str]]:
    """Return the gold labels and the predicted ones."""
    return [str(example.label) for example in examples], [prediction.label for prediction in predictions]


def evaluate_classes(
    labels: tuple[str, ...],
    predictions: list[ClassPrediction],
    examples: Sequence[LabeledExample],
    texts: Callable[[int], list[list[TextSpan]]],
    *findings: Finding,
) -> Evaluation:
    """Return the evaluation: the loss is −log of the gold label's probability.

    Args:
        labels: The classes.
        predictions: One per example.
        examples: The labeled examples.
        texts: Returns the texts of an example for display, by its index.
        findings: What the page shows first.
    """
    gold, predicted = gold_and_predicted(predictions, examples)
    probabilities = [np.array([prediction.probabilities[label] for label in labels]) for prediction in predictions]
    calibration, losses = choice_calibration(probabilities, [labels.index(label) for label in gold])

    def passage(i: int) -> Passage:
        sides = {"gold": gold[i], "predicted": predicted[i]}
        facts = {side: f"{label}, {percent(predictions[i].probabilities[label])}" for side, label in sides.items()}
        return Passage(facts, texts(i))

    findings = (*findings, *class_findings(gold, predicted, labels, "class"), calibration)
    return Evaluation({"gold": gold}, losses, "−log of the gold label's probability, in nats", findings, passage)
