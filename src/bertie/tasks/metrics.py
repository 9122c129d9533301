"""Scores of classes and numbers, and means over runs with their uncertainty.

Scores that the data do not define follow one rule, here and in `example_sums` (docs/reference/scores.md): a mean leaves out
what is 0/0, such as the F1 of a class without gold labels and predictions, and a score of which nothing is left is 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LOWER_IS_BETTER = frozenset({"mse"})
_ROUNDING = 1e-11  # values with a smaller relative spread are constant but for float64 rounding: SciPy warns about them
CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def classification_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    """Return accuracy and f1, 0 to 1, and matthews (Matthews correlation), −1 to 1.

    With two labels, f1 is that of the second one (GLUE's convention: label "1"); otherwise it is the mean over those of
    `labels` that are a gold label or a prediction, as in scikit-learn. A class that is never predicted has f1 0. matthews
    is 0 if the gold labels or the predictions are all of one class.

    Args:
        gold: The gold labels.
        predicted: The predicted labels.
        labels: All classes.
    """
    table = confusion(gold, predicted, list(dict.fromkeys([*labels, *gold, *predicted])))
    right, found, hits, n = table.sum(1), table.sum(0), float(np.trace(table)), float(len(gold))
    scored = slice(1, 2) if len(labels) == 2 else slice(len(labels))
    covariance, spreads = hits * n - right @ found, [n * n - counts @ counts for counts in (right, found)]
    return {
        "accuracy": hits / n,
        "f1": mean_where(class_scores(table)[2][scored], (right + found)[scored] > 0),
        "matthews": float(covariance / np.sqrt(spreads[0] * spreads[1])) if all(spreads) else 0.0,
    }


def confusion(gold: list[str], predicted: list[str], labels: list[str]) -> np.ndarray:
    """Return float64 [labels, labels]: how many examples of each gold label have each prediction."""
    number = {label: i for i, label in enumerate(labels)}
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, ([number[label] for label in gold], [number[label] for label in predicted]), 1)
    return table


def class_scores(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and f1 of each class, float64 [labels], from a `confusion`. A fraction 0/0 counts as 0."""
    right, found, hits = table.sum(1), table.sum(0), np.diag(table)
    return tuple(
        part / np.maximum(whole, 1) for part, whole in ((hits, found), (hits, right), (2 * hits, right + found))
    )


def mean_where(values: np.ndarray, defined: np.ndarray | np.bool) -> float:
    """Return the mean of the values that are defined (bool); 0 if none is."""
    return float(values[defined].mean()) if defined.any() else 0.0


def is_constant(values: list[float]) -> bool:
    """Return whether the values are equal up to rounding, so that they have no correlation."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def regression_scores(gold: list[float], predicted: list[float]) -> dict[str, float]:
    """Return pearson and spearman, −1 to 1, and mse.

    The correlations are 0 if either side is constant up to rounding.
    """
    from scipy import stats

    constant = is_constant(gold) or is_constant(predicted)
    measures: tuple[Any, ...] = (stats.pearsonr, stats.spearmanr)
    pearson, spearman = (0.0 if constant else float(measure(gold, predicted).statistic) for measure in measures)
    errors = np.subtract(gold, predicted)
    return {"pearson": pearson, "spearman": spearman, "mse": float(np.mean(errors * errors))}


def standard_error(values: list[float]) -> float:
    """Return the standard error of the mean; nan for a single value."""
    from scipy import stats

    return float(stats.sem(values)) if len(values) > 1 else math.nan


def mean_and_interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and the half-width of its 95 % confidence interval (Student's t), which is nan for a single value."""
    from scipy import stats

    return float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1)) * standard_error(values)


def difference(a: list[float], b: list[float]) -> tuple[float, float]:
    """Return mean(a) − mean(b) of two independent samples, and its standard error for unequal variances (Welch).

    The standard error is nan if a sample has fewer than two values.
    """
    return float(np.mean(a) - np.mean(b)), math.hypot(standard_error(a), standard_error(b))
