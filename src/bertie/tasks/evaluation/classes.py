"""What is told of predictions that are one of several classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertie.tasks.evaluation.calibration import Calibration, calibration, log_losses
from bertie.tasks.evaluation.findings import Confusion, Table

MEASURES = ("precision", "recall", "f1", "count")


def class_findings(gold: list[str], predicted: list[str], labels: Sequence[str], what: str) -> tuple[Table, Confusion]:
    """labels: at least all that occur; what: one of them is called."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    names = list(labels)
    measures = precision_recall_fscore_support(gold, predicted, labels=names, zero_division=0)  # pyright: ignore
    columns = [np.asarray(column).tolist() for column in measures]
    label, count = Counter(gold).most_common(1)[0]
    note = f"Whoever always says {label} is right in {100 * count / len(gold):.1f}\u00a0% of the cases."
    table = Table("classes", f"By {what}", (what, *MEASURES), list(zip(names, *columns, strict=True)), note)
    return table, Confusion(names, confusion_matrix(gold, predicted, labels=names))


def choice_calibration(probabilities: list[np.ndarray], gold: list[int]) -> tuple[Calibration, np.ndarray]:
    """probabilities: float64 [C] of each example; gold: which one is right. Also −log of the right one's, float64 [n].

    log_loss: the mean of that, nats. brier: Σ over the classes of (probability − 1 for the right one, else 0)², the mean over
    the examples: 0 to 2 (Brier 1950).
    """
    of_gold = np.array([row[number] for row, number in zip(probabilities, gold, strict=True)])
    squares = np.array([row @ row for row in probabilities])
    best = [int(row.argmax()) for row in probabilities]
    sure = np.array([row[number] for row, number in zip(probabilities, best, strict=True)])
    losses = log_losses(of_gold)
    more = {"log_loss": float(losses.mean()), "brier": float(np.mean(squares - 2 * of_gold + 1))}
    return calibration(sure, np.equal(best, gold), more), losses
