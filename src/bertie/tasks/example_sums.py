"""Scores as functions of sums over examples.

`Task.sums` returns a row of numbers per example for each score. The score of any sample of examples, with repetitions, is a
formula of the sums of their rows: `scores` takes all of them. With `counts` [samples, examples], how often each sample has each
example, `counts @ rows` gives the scores of all samples of a bootstrap at once.

    N  examples
    C  classes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import eq
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.examples.tag_form import TagForm
from bertie.tasks.entities import entities
from bertie.tasks.metrics import is_constant

Rows = Float[np.ndarray, "samples K"]
ExampleSums = tuple[str, Rows]
"""The name of a formula in `FORMULAS`, and the rows of the examples, whose sums it needs."""


def score_by_sums(task: Any, predictions: list[Any], examples: list[Any]) -> dict[str, float]:
    """Return the scores of all examples: `Task.score` of most tasks."""
    return scores(task.sums(predictions, examples))


def scores(sums: dict[str, ExampleSums]) -> dict[str, float]:
    """Return the score of all examples together, by name."""
    return {name: _of_all(formula, rows) for name, (formula, rows) in sums.items()}


def _of_all(formula: str, rows: Rows) -> float:
    totals = np.ascontiguousarray(rows[rows.any(1)].T).sum(1)  # a mean rounds as NumPy's of the examples that count
    return float(FORMULAS[formula](totals[None])[0])


def mean_sums(values: Sequence[Any] | np.ndarray) -> ExampleSums:
    """Return rows (value, 1): the score is the mean of the values."""
    return "mean", np.stack([np.array(values, float), np.ones(len(values))], 1)


def class_sums(gold: list[str], predicted: list[str], labels: Sequence[str]) -> dict[str, ExampleSums]:
    """Return the rows of accuracy and f1, 0 to 1, and of matthews (Matthews correlation), −1 to 1.

    With two labels, f1 scores the second one (GLUE's convention: label "1"); otherwise it is the mean over the
    `labels` that are a gold label or a prediction, as in scikit-learn. A class that is never predicted has f1 0. matthews
    is 0 if the gold labels or the predictions are all of one class.

    Args:
        gold: The gold labels.
        predicted: The predicted labels.
        labels: All classes.
    """
    index = {label: i for i, label in enumerate(dict.fromkeys([*labels, *gold, *predicted]))}
    one = np.eye(len(index))
    gold_NC, predicted_NC = (one[[index[label] for label in side]] for side in (gold, predicted))
    hits_NC = gold_NC * predicted_NC
    scored = slice(1, 2) if len(labels) == 2 else slice(len(labels))
    hits = hits_NC.sum(1)
    return {
        "accuracy": mean_sums(hits),
        "f1": ("f1", np.hstack([side[:, scored] for side in (hits_NC, gold_NC, predicted_NC)])),
        "matthews": ("matthews", np.hstack([hits[:, None], gold_NC, predicted_NC])),
    }


def number_sums(gold: Sequence[float] | np.ndarray, predicted: Sequence[float] | np.ndarray) -> dict[str, ExampleSums]:
    """Return the rows of pearson and spearman, −1 to 1, and mse; of several outputs the means over them.

    The correlations are 0 if either side is constant up to rounding. gold, predicted: for each example a number, or one for
    each output. spearman uses the ranks among all examples, also for samples of them.
    """
    from scipy.stats import rankdata

    x, y = (np.array(side, float).reshape(len(side), -1) for side in (predicted, gold))
    constant = [np.array([is_constant(column) for column in side.T]) for side in (x, y)]

    def correlation(*sides: np.ndarray) -> ExampleSums:
        # Subtracting a number does not change the correlation: it makes the sums precise, and constants exact.
        x, y = (np.where(same, 0.0, side - side.mean(0)) for side, same in zip(sides, constant, strict=True))
        return "pearson", np.hstack([np.ones_like(x), x, y, x * x, y * y, x * y])

    spearman = correlation(rankdata(x, axis=0), rankdata(y, axis=0))
    return {"pearson": correlation(x, y), "spearman": spearman, "mse": mean_sums(((x - y) ** 2).mean(1))}


def tag_sums(gold: list[list[str]], predicted: list[list[str]], form: TagForm | None) -> dict[str, ExampleSums]:
    """Return the rows of the accuracy over words and, for tags of a form, of f1, precision and recall of whole entities.

    An entity is correct if its words and kind match. Scores are 0 if there are no gold or no predicted entities.
    """
    pairs = list(zip(gold, predicted, strict=True))
    words = [[sum(map(eq, *pair)), len(pair[0])] for pair in pairs]
    sums: dict[str, ExampleSums] = {"accuracy": ("mean", np.array(words, float))}
    if form is None:
        return sums
    sides = [[set(entities(tags, form)) for tags in side] for side in (gold, predicted)]
    rows = [[len(right & guessed), len(right), len(guessed)] for right, guessed in zip(*sides, strict=True)]
    return sums | f1_sums(np.array(rows, float))


def f1_sums(rows: Rows) -> dict[str, ExampleSums]:
    """Return the rows of f1, precision and recall from the numbers of correct, gold and predicted members."""
    return {"f1": ("f1", rows), "precision": ("mean", rows[:, [0, 2]]), "recall": ("mean", rows[:, [0, 1]])}


def _mean(sums: Rows) -> np.ndarray:
    return sums[:, 0] / np.maximum(sums[:, 1], 1)


def _f1(sums: Rows) -> np.ndarray:
    """Mean F1 of the classes that occur, from the numbers of correct, gold and predicted members of each."""
    correct, gold, predicted = np.moveaxis(sums.reshape(len(sums), 3, -1), 1, 0)
    members = gold + predicted
    used = members.any(0)
    correct, members = correct[:, used], members[:, used]
    return (2 * correct / np.maximum(members, 1)).sum(1) / np.maximum(np.count_nonzero(members, axis=1), 1)


def _matthews(sums: Rows) -> np.ndarray:
    """Matthews correlation, from the number of correct predictions, and the gold and predicted members of each class."""
    hits, (gold, predicted) = sums[:, 0], np.split(sums[:, 1:], 2, axis=1)
    n = gold.sum(1)
    spreads = [n * n - (side * side).sum(1) for side in (gold, predicted)]
    scale = np.sqrt(spreads[0] * spreads[1])
    return np.where(scale > 0, (hits * n - (gold * predicted).sum(1)) / np.where(scale > 0, scale, 1), 0.0)


def _pearson(sums: Rows) -> np.ndarray:
    """Mean correlation of the outputs."""
    n, x, y, xx, yy, xy = np.moveaxis(sums.reshape(len(sums), 6, -1), 1, 0)
    # The spread of a sample of equal numbers is a rounding error of the sums.
    spreads = [np.where(a > 1e-12 * n * b, a, 0) for a, b in ((n * xx - x * x, xx), (n * yy - y * y, yy))]
    scale = np.sqrt(spreads[0] * spreads[1])
    return np.where(scale > 0, (n * xy - x * y) / np.where(scale > 0, scale, 1), 0.0).mean(1)


FORMULAS: dict[str, Callable[[Rows], np.ndarray]] = {
    "mean": _mean,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
}
"""Scores by the name of their formula, from the sums of the rows of each sample."""
