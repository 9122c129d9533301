"""Scores as functions of sums over examples, so that a bootstrap needs no more than sums of rows.

`example_sums` returns a row of numbers per example. The score of any sample of examples, with repetitions, is a formula of
the sums of their rows. With `counts` [samples, examples], how often each sample has each example, `counts @ rows` therefore
gives the scores of all samples at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.tasks import AnyTask, Choose, Classify, Embed, Regress, Span, Tag
from bertie.tasks.entities import entities
from bertie.tasks.squad_metrics import score_answer

Sums = Float[np.ndarray, "samples K"]


def example_sums(
    task: AnyTask, predictions: list[Any], examples: list[Any], metric: str
) -> tuple[str, Float[np.ndarray, "examples K"]] | None:
    """Return the name of a formula in `FORMULAS` and the rows whose sums it needs, so that it equals `task.score`.

    spearman uses the ranks among all examples, also for samples of them.

    Args:
        task: The fitted task.
        predictions: One per example.
        examples: The labeled examples.
        metric: A key of `task.score`.

    Returns:
        None if the score is no such formula.
    """
    match task:
        case Classify():
            return _classes(task.labels, [p.label for p in predictions], [str(e.label) for e in examples], metric)
        case Choose() if metric == "accuracy":
            return "mean", _means([p.choice == e.label for p, e in zip(predictions, examples, strict=True)])
        case Regress() if metric in ("pearson", "spearman", "mse"):
            return _numbers([p.score for p in predictions], [float(e.label) for e in examples], metric)
        case Embed() if metric in ("pearson", "spearman"):
            return _numbers([p.similarity for p in predictions], [float(e.label) for e in examples], metric)
        case Span() if metric in ("f1", "exact_match"):
            second, side = any(not example.answers for example in examples), int(metric == "f1")
            pairs = zip(predictions, examples, strict=True)
            return "mean", _means([score_answer(found.answer, question, second)[side] for found, question in pairs])
        case Tag() if metric in ("f1", "accuracy"):
            return _tags([p.tags for p in predictions], [list(e.tags or ()) for e in examples], metric)
    return None


def _means(values: list[Any]) -> np.ndarray:
    """Rows (value, 1), whose mean is the score."""
    return np.stack([np.array(values, float), np.ones(len(values))], 1)


def _classes(
    labels: tuple[str, ...], predicted: list[str], gold: list[str], metric: str
) -> tuple[str, np.ndarray] | None:
    index = {label: i for i, label in enumerate(labels)}
    found, right = (np.array([index[label] for label in side]) for side in (predicted, gold))
    hit = found == right
    if metric == "accuracy":
        return "mean", _means(hit.tolist())
    if metric == "matthews" and len(labels) == 2:
        cells = 2 * right + found  # true negatives, false positives, false negatives, true positives
        return "matthews", np.eye(4)[cells]
    if metric == "f1":
        one = np.eye(len(labels))
        scored = slice(1, None) if len(labels) == 2 else slice(None)
        counts = np.stack([one[right] * hit[:, None], one[right], one[found]], 1)[:, :, scored]
        return "f1", counts.reshape(len(gold), -1)
    return None


def _numbers(predicted: list[float], gold: list[float], metric: str) -> tuple[str, np.ndarray]:
    x, y = np.array(predicted, float), np.array(gold, float)
    if metric == "mse":
        return "mean", _means(((x - y) ** 2).tolist())
    if metric == "spearman":
        from scipy.stats import rankdata

        x, y = rankdata(x), rankdata(y)
    x, y = x - x.mean(), y - y.mean()  # for the precision of the sums; the correlation does not change
    return "pearson", np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], 1)


def _tags(predicted: list[list[str]], gold: list[list[str]], metric: str) -> tuple[str, np.ndarray]:
    if metric == "accuracy":
        hits = [
            [sum(a == b for a, b in zip(*pair, strict=True)), len(pair[1])]
            for pair in zip(predicted, gold, strict=True)
        ]
        return "mean", np.array(hits, float)
    sides = [[set(entities(tags)) for tags in side] for side in (gold, predicted)]
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


FORMULAS: dict[str, Callable[[Sums], np.ndarray]] = {
    "mean": _mean,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
}
"""Scores by the name of their formula, from the sums of the rows of each sample."""
