"""Scores of classes and numbers, and means over runs with their uncertainty. scikit-learn and SciPy compute them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LOWER_IS_BETTER = frozenset({"mse"})
_ROUNDING = 1e-11  # values with a smaller relative spread are constant but for float64 rounding: SciPy warns about them
CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def classification_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    """Return accuracy and f1, 0 to 1, and matthews (Matthews correlation), −1 to 1.

    With two labels, f1 is that of the second one (GLUE's convention: label "1"); otherwise it is the mean over
    `labels`. A class that is never predicted has f1 0. matthews is 0 if the gold labels or the predictions are all of
    one class.

    Args:
        gold: The gold labels.
        predicted: The predicted labels.
        labels: All classes.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    one_class = len({*gold, *predicted}) == 1  # scikit-learn returns 0 here too, but warns
    scored = labels[1:] if len(labels) == 2 else labels
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "f1": float(f1_score(gold, predicted, labels=scored, average="macro", zero_division=0)),  # pyright: ignore
        "matthews": 0.0 if one_class else float(matthews_corrcoef(gold, predicted)),
    }


def regression_scores(gold: list[float], predicted: list[float]) -> dict[str, float]:
    """Return pearson and spearman, −1 to 1, and mse.

    The correlations are 0 if either side is constant up to rounding.
    """
    from scipy import stats

    constant = any(np.ptp(side) <= _ROUNDING * np.abs(side).max() for side in (gold, predicted))
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
