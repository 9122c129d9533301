"""The evaluation of regression."""

from __future__ import annotations

import numpy as np

from bertie.tasks.data.texts import Example
from bertie.tasks.evaluation.findings import Evaluation, Histogram, Scatter, Table
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.predictions import NumberPrediction


def evaluate_numbers(predictions: list[NumberPrediction], examples: list[Example]) -> Evaluation:
    """Return the evaluation: the loss is the squared residual, predicted − gold."""
    gold = np.array([float(example.label or 0) for example in examples])
    predicted = np.array([each.score for each in predictions])
    residuals = predicted - gold
    losses = residuals**2

    def passage(i: int) -> Passage:
        facts = {"gold": f"{gold[i]:g}", "predicted": f"{predicted[i]:.3g}", "residual": f"{residuals[i]:+.3g}"}
        return Passage(facts, texts_of(examples[i]))

    return Evaluation(
        [{"gold": value, "loss": loss} for value, loss in zip(gold.tolist(), losses.tolist(), strict=True)],
        losses,
        "squared residual",
        (
            Scatter("scatter", "Gold and predicted", gold, predicted, "gold", "predicted", diagonal=True),
            _errors(gold, residuals),
            Histogram(
                "residuals", "Residuals", _bars(residuals), "predicted − gold", "number of examples, by residual"
            ),
        ),
        passage,
    )


def _errors(gold: np.ndarray, residuals: np.ndarray) -> Table:
    measures = {
        "mean absolute error": np.abs(residuals).mean(),
        "mean absolute error of always saying the mean": np.abs(gold - gold.mean()).mean(),
        "root of the mean square": np.sqrt((residuals**2).mean()),
        "mean residual": residuals.mean(),
    }
    return Table("errors", "Errors", ("", "value"), [(name, float(value)) for name, value in measures.items()])


def _bars(values: np.ndarray) -> dict[str, int]:
    """Return a histogram of at most 20 bars, whose width is 1, 2 or 5 times a power of ten.

    The name of a bar is its lower edge.
    """
    spread = max(float(values.max() - values.min()), 1e-6 * float(np.abs(values).max()), 1e-6)
    power = 10.0 ** np.floor(np.log10(spread / 20))
    width = next(step * power for step in (1, 2, 5, 10, 20) if spread / (step * power) <= 19)
    numbers = np.floor(values / width).astype(np.int64)
    counts = np.bincount(numbers - numbers.min())
    decimals = max(0, -int(np.floor(np.log10(width) + 1e-9)))
    return {f"{(numbers.min() + i) * width + 0.0:.{decimals}f}": int(count) for i, count in enumerate(counts)}
