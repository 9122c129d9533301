"""Findings for predictions that are one of several classes: scores per class, confusion matrix, calibration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertie.tasks.evaluation.calibration import Calibration, calibration, log_losses
from bertie.tasks.evaluation.findings import Confusion, Table

MEASURES = ("precision", "recall", "f1", "count")


def class_findings(gold: list[str], predicted: list[str], labels: Sequence[str], what: str) -> tuple[Table, Confusion]:
    """Return the scores of each class, and the confusion matrix.

    Args:
        gold: The gold labels.
        predicted: The predicted labels.
        labels: All classes, including every one that occurs.
        what: The noun for a class, for headings: "tag".
    """
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    names = list(labels)
    measures = precision_recall_fscore_support(gold, predicted, labels=names, zero_division=0)  # pyright: ignore
    columns = [np.asarray(column).tolist() for column in measures]
    label, count = Counter(gold).most_common(1)[0]
    note = f"Baseline: always predicting {label} has an accuracy of {100 * count / len(gold):.1f}\u00a0%."
    table = Table("classes", f"By {what}", (what, *MEASURES), list(zip(names, *columns, strict=True)), note)
    return table, Confusion(names, confusion_matrix(gold, predicted, labels=names))


def choice_calibration(probabilities: list[np.ndarray], gold: list[int]) -> tuple[Calibration, np.ndarray]:
    """Return the calibration of the most probable classes, and −log of the gold classes' probabilities, float64 [n].

    The calibration includes log_loss, the mean of these −logs in nats, and brier, the mean over the examples of
    Σ (p − y)² over the classes, where y is 1 for the gold class and 0 for the others: 0 to 2 (Brier 1950).

    Args:
        probabilities: float64 [C] of each example.
        gold: The index of each gold class.
    """
    of_gold = np.array([row[number] for row, number in zip(probabilities, gold, strict=True)])
    squares = np.array([row @ row for row in probabilities])
    best = [int(row.argmax()) for row in probabilities]
    confidence = np.array([row[number] for row, number in zip(probabilities, best, strict=True)])
    losses = log_losses(of_gold)
    more = {"log_loss": float(losses.mean()), "brier": float(np.mean(squares - 2 * of_gold + 1))}
    return calibration(confidence, np.equal(best, gold), more), losses
