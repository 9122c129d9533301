"""Scores as functions of sums over examples, so that a bootstrap needs no more than sums of rows.

`Task.example_sums` returns a row of numbers per example. The score of any sample of examples, with repetitions, is a formula of
the sums of their rows. With `counts` [samples, examples], how often each sample has each example, `counts @ rows` therefore
gives the scores of all samples at once.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import eq
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.tasks.data.tag_form import TagForm
from bertie.tasks.entities import entities

Sums = Float[np.ndarray, "samples K"]
ExampleSums = tuple[str, Float[np.ndarray, "examples K"]]
"""The name of a formula in `FORMULAS`, and the rows whose sums it needs. It then equals the score of the task."""


def mean_sums(values: list[Any]) -> ExampleSums:
    """Return rows (value, 1): the score is the mean of the values."""
    return "mean", np.stack([np.array(values, float), np.ones(len(values))], 1)


def class_sums(labels: tuple[str, ...], predicted: list[str], gold: list[str], metric: str) -> ExampleSums | None:
    """Return the rows of accuracy, f1, or matthews of two classes. None for other metrics."""
    index = {label: i for i, label in enumerate(labels)}
    found, right = (np.array([index[label] for label in side]) for side in (predicted, gold))
    hit = found == right
    if metric == "accuracy":
        return mean_sums(hit.tolist())
    if metric == "matthews" and len(labels) == 2:
        cells = 2 * right + found  # true negatives, false positives, false negatives, true positives
        return "matthews", np.eye(4)[cells]
    if metric == "f1":
        one = np.eye(len(labels))
        scored = slice(1, None) if len(labels) == 2 else slice(None)
        counts = np.stack([one[right] * hit[:, None], one[right], one[found]], 1)[:, :, scored]
        return "f1", counts.reshape(len(gold), -1)
    return None


def number_sums(predicted: list[float], gold: list[float], metric: str) -> ExampleSums | None:
    """Return the rows of mse, pearson or spearman. None for other metrics.

    spearman uses the ranks among all examples, also for samples of them.
    """
    if metric not in ("mse", "pearson", "spearman"):
        return None
    x, y = np.array(predicted, float), np.array(gold, float)
    if metric == "mse":
        return mean_sums(((x - y) ** 2).tolist())
    if metric == "spearman":
        from scipy.stats import rankdata

        x, y = rankdata(x), rankdata(y)
    x, y = x - x.mean(), y - y.mean()  # for the precision of the sums; the correlation does not change
    return "pearson", np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)


def tag_sums(
    predicted: list[list[str]], gold: list[list[str]], metric: str, form: TagForm | None
) -> ExampleSums | None:
    """Return the rows of the accuracy over words, or of the f1 of entities. None for other metrics."""
    if metric == "accuracy":
        pairs = zip(predicted, gold, strict=True)
        return "mean", np.array([[sum(map(eq, *pair)), len(pair[1])] for pair in pairs], float)
    if metric != "f1" or form is None:
        return None
    sides = [[set(entities(tags, form)) for tags in side] for side in (gold, predicted)]
    rows = [[len(right & found), len(right), len(found)] for right, found in zip(*sides, strict=True)]
    return "f1", np.array(rows, float)


def _mean(sums: Sums) -> np.ndarray:
    return sums[:, 0] / np.maximum(sums[:, 1], 1)


def _f1(sums: Sums) -> np.ndarray:
    """Mean F1 of the classes, from the numbers of correct, gold and predicted members of each."""
    correct, gold, predicted = np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)
    return (2 * correct / np.maximum(gold + predicted, 1)).mean(1)


def _matthews(sums: Sums) -> np.ndarray:
    tn, fp, fn, tp = sums.T
    scale = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return np.where(scale > 0, (tp * tn - fp * fn) / np.where(scale > 0, scale, 1), 0.0)


def _pearson(sums: Sums) -> np.ndarray:
    n, x, y, xx, yy, xy = sums.T
    scale = np.sqrt(np.maximum((n * xx - x * x) * (n * yy - y * y), 0))
    return np.where(scale > 0, (n * xy - x * y) / np.where(scale > 0, scale, 1), 0.0)


Formula = Callable[[Sums], np.ndarray]
FORMULAS: dict[str, Formula] = {"mean": _mean, "f1": _f1, "matthews": _matthews, "pearson": _pearson}
"""Scores by the name of their formula, from the sums of the rows of each sample."""
