"""Scores of classes and numbers, and means over runs with their uncertainty. Thin: scikit-learn and scipy do the work."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LOWER_IS_BETTER = frozenset({"mse"})
_ROUNDING = 1e-11  # what differs by less, of its size, has only float64's own noise to correlate: scipy warns of it
CORRELATIONS = frozenset({"matthews", "pearson", "spearman"})


def classification_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    """accuracy and f1 from 0 to 1, matthews (Matthews' correlation) from -1 to 1.

    f1 is that of the second label where there are two (GLUE's convention: label "1"), else the mean over `labels`.
    A class that is never predicted counts as f1 0, and matthews is 0 where either side holds one class only.
    """
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    one_class = len({*gold, *predicted}) == 1  # scikit-learn gives 0 here too, but warns
    scored = labels[1:] if len(labels) == 2 else labels
    return {
        "accuracy": float(accuracy_score(gold, predicted)),
        "f1": float(f1_score(gold, predicted, labels=scored, average="macro", zero_division=0)),  # pyright: ignore
        "matthews": 0.0 if one_class else float(matthews_corrcoef(gold, predicted)),
    }


def regression_scores(gold: list[float], predicted: list[float]) -> dict[str, float]:
    """pearson and spearman, −1 to 1 (0 where either side is constant, but for rounding), and mse."""
    from scipy import stats

    constant = any(np.ptp(side) <= _ROUNDING * np.abs(side).max() for side in (gold, predicted))
    measures: tuple[Any, ...] = (stats.pearsonr, stats.spearmanr)
    pearson, spearman = (0.0 if constant else float(measure(gold, predicted).statistic) for measure in measures)
    away = np.subtract(gold, predicted)
    return {"pearson": pearson, "spearman": spearman, "mse": float(np.mean(away * away))}


def mean_and_interval(values: list[float]) -> tuple[float, float, float]:
    """Mean, its standard error, and the half-width of its 95 % interval (Student's t).

    One value has a mean only: the other two are then nan.
    """
    from scipy import stats

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    error = float(stats.sem(values))
    return mean, error, float(stats.t.ppf(0.975, len(values) - 1)) * error


def difference(a: list[float], b: list[float]) -> tuple[float, float]:
    """mean(a) - mean(b) of two independent lists, and its standard error without assuming equal variances (Welch).

    The error is nan where a list has fewer than two values.
    """
    _, error_a, _ = mean_and_interval(a)
    _, error_b, _ = mean_and_interval(b)
    return float(np.mean(a) - np.mean(b)), math.hypot(error_a, error_b)
