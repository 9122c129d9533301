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
from bertie.tasks.metrics import is_constant

Sums = Float[np.ndarray, "samples K"]
ExampleSums = tuple[str, Float[np.ndarray, "examples K"]]
"""The name of a formula in `FORMULAS`, and the rows whose sums it needs. It then equals the score of the task."""


def mean_sums(values: list[Any]) -> ExampleSums:
    """Return rows (value, 1): the score is the mean of the values."""
    return "mean", np.stack([np.array(values, float), np.ones(len(values))], 1)


def class_sums(labels: tuple[str, ...], predicted: list[str], gold: list[str], metric: str) -> ExampleSums | None:
    """Return the rows of accuracy, f1 or matthews. None for other metrics."""
    index = {label: i for i, label in enumerate(labels)}
    found, right = (np.array([index[label] for label in side]) for side in (predicted, gold))
    hit = found == right
    if metric == "accuracy":
        return mean_sums(hit.tolist())
    one = np.eye(len(labels))
    if metric == "matthews":
        return "matthews", np.hstack([hit[:, None], one[right], one[found]])
    if metric == "f1":
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
    constant = is_constant(predicted), is_constant(gold)
    if metric == "spearman":
        from scipy.stats import rankdata

        x, y = rankdata(x), rankdata(y)
    # Subtracting a number does not change the correlation: it makes the sums precise, and constants exact.
    x, y = (np.zeros_like(side) if same else side - side.mean() for side, same in zip((x, y), constant, strict=True))
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
    """Mean F1 of the classes that occur, from the numbers of correct, gold and predicted members of each."""
    correct, gold, predicted = np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)
    occur = np.count_nonzero(gold + predicted, axis=1)
    return (2 * correct / np.maximum(gold + predicted, 1)).sum(1) / np.maximum(occur, 1)


def _matthews(sums: Sums) -> np.ndarray:
    """Matthews correlation, from the number of correct predictions, and the gold and predicted members of each class."""
    hits, (gold, predicted) = sums[:, 0], np.split(sums[:, 1:], 2, axis=1)
    n = gold.sum(1)
    spreads = [n * n - (side * side).sum(1) for side in (gold, predicted)]
    scale = np.sqrt(spreads[0] * spreads[1])
    return np.where(scale > 0, (hits * n - (gold * predicted).sum(1)) / np.where(scale > 0, scale, 1), 0.0)


def _pearson(sums: Sums) -> np.ndarray:
    n, x, y, xx, yy, xy = sums.T
    # The spread of a sample of equal numbers is a rounding error of the sums.
    spreads = [np.where(a > 1e-12 * n * b, a, 0) for a, b in ((n * xx - x * x, xx), (n * yy - y * y, yy))]
    scale = np.sqrt(spreads[0] * spreads[1])
    return np.where(scale > 0, (n * xy - x * y) / np.where(scale > 0, scale, 1), 0.0)


Formula = Callable[[Sums], np.ndarray]
FORMULAS: dict[str, Formula] = {"mean": _mean, "f1": _f1, "matthews": _matthews, "pearson": _pearson}
"""Scores by the name of their formula, from the sums of the rows of each sample."""
