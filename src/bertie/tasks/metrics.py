"""Scores of each class and of numbers, and means over runs with their uncertainty.

Scores that the data do not define follow one rule, here and in `example_sums` (docs/reference/scores.md): a mean leaves out
what is 0/0, such as the F1 of a class without gold labels and predictions, and a score of which nothing is left is 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_ROUNDING = 1e-11  # values with a smaller relative spread are constant but for float64 rounding: SciPy warns about them
CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def sign(metric: str) -> int:
    """Return −1 for scores that are better when lower, which are mse and those whose names end in error or loss; else 1."""
    return -1 if metric == "mse" or metric.endswith(("error", "loss")) else 1


def confusion(gold: list[str], predicted: list[str], labels: list[str]) -> np.ndarray:
    """Return float64 [labels, labels]: how many examples of each gold label have each prediction."""
    number = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, ([number[label] for label in gold], [number[label] for label in predicted]), 1)
    return table


def precision_recall_f1(correct: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return precision, recall and f1 of counts. A fraction 0/0 counts as 0."""
    f1 = 2 * correct / np.maximum(gold + predicted, 1)
    return correct / np.maximum(predicted, 1), correct / np.maximum(gold, 1), f1


def is_constant(values: Any) -> bool:
    """Return whether the values are equal up to rounding, so that they have no correlation."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % confidence interval (Student's t), which is nan for a single value."""
    from scipy import stats

    if len(values) == 1:
        return float(np.mean(values)), math.nan
    return float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
