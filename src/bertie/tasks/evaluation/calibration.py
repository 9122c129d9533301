"""Calibration: how well predicted probabilities match the accuracy. Calibration error and reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bertie.base.report import QUIET, SERIES, Page

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 15
MIN_PROBABILITY = 1e-15  # lower bound of probabilities in logarithms
MEANINGS = {  # further measures, as sentences of the report
    "log_loss": "Log loss {:.4f} nats: the mean of −log of the gold label's probability.",
    "brier": "Brier score {:.4f}: the mean squared error of the probabilities, summed over the classes, 0 to 2.",
}


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predictions grouped into BINS bins of equal width by their probability.

    A bin holds its upper edge, but not its lower one; the first bin holds both.
    """

    count: np.ndarray
    """int64 [BINS]: predictions in each bin."""
    accuracy: np.ndarray
    """float64 [BINS]: share of correct predictions."""
    confidence: np.ndarray
    """float64 [BINS]: mean probability of the predictions."""
    more: dict[str, float]
    """Other measures of the probabilities, by name."""
    unit: str
    """The plural noun for what is predicted, for captions: "examples"."""
    name: str = "calibration"

    @property
    def ece(self) -> float:
        """Expected calibration error: Σ count/n · |accuracy − confidence| (Guo et al. 2017, section 2)."""
        return float(np.abs(self.accuracy - self.confidence) @ self.count / max(self.count.sum(), 1))

    def as_json(self) -> dict[str, Any]:
        """Return the measures, and the bins that are not empty."""
        edges = np.linspace(0, 1, BINS + 1).round(4).tolist()
        columns = (column.tolist() for column in (self.count, self.accuracy, self.confidence))
        bins = [
            {"from": low, "to": high, "count": count, "accuracy": right, "confidence": sure}
            for (low, high), count, right, sure in zip(pairwise(edges), *columns, strict=True)
            if count
        ]
        return {"ece": self.ece, **self.more, "bins": bins}

    def draw(self, page: Page) -> None:
        page.heading("Calibration")
        more = "".join(f"{MEANINGS[name].format(value)} " for name, value in self.more.items())
        page.paragraph(
            f"Expected calibration error {self.ece:.4f}: the mean difference between predicted probability and "
            f"accuracy over {BINS} bins of equal width. {more}A dot above the line means that the model is "
            f"underconfident, below that it is overconfident. The size of a dot grows with the number of {self.unit} in "
            "its bin."
        )
        total = int(self.count.sum())
        about = f"Expected calibration error {self.ece:.4f} over {total:,} {self.unit}"
        page.picture(self._reliability, "accuracy, by predicted probability", about, 3.4)
        page.picture(self._confidences, f"number of {self.unit}, by predicted probability", about, 2.8)

    def _reliability(self, axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        used = self.count > 0
        confidence, accuracy = self.confidence[used], self.accuracy[used]
        axes.vlines(confidence, confidence, accuracy, color=SERIES[1], linewidth=2, alpha=0.7)
        sizes = 18 + 150 * self.count[used] / self.count.max()
        axes.scatter(confidence, accuracy, s=sizes, color=SERIES[0], zorder=3, linewidths=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.05)
        axes.grid()
        axes.set_xlabel("mean probability of the bin")

    def _confidences(self, axes: Axes) -> None:
        middle = (np.arange(BINS) + 0.5) / BINS
        correct = np.round(self.count * self.accuracy)
        wrong = self.count - correct
        axes.bar(middle, correct, width=0.85 / BINS, color=SERIES[0], label="correct")
        axes.bar(middle, wrong, width=0.85 / BINS, bottom=correct, color=SERIES[1], label="wrong")
        axes.set_xlim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y")
        axes.locator_params(axis="y", nbins=5, integer=True)
        axes.set_xlabel("predicted probability")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.4)


def calibration(
    confidence: np.ndarray, correct: np.ndarray, more: dict[str, float], unit: str = "examples"
) -> Calibration:
    """Group predictions by their probability.

    Args:
        confidence: float64 [n], the probability of each prediction.
        correct: bool [n], whether it is correct.
        more: Other measures of the probabilities, by their names in MEANINGS.
        unit: The plural noun for what is predicted.
    """
    bins = np.clip(np.searchsorted(np.linspace(0, 1, BINS + 1), confidence, side="left") - 1, 0, BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    accuracies, confidences = (
        np.bincount(bins, weights=values, minlength=BINS) / np.maximum(count, 1)
        for values in (correct.astype(np.float64), confidence)
    )
    return Calibration(count, accuracies, confidences, more, unit)


def log_losses(probabilities: np.ndarray) -> np.ndarray:
    """Return −log p of each probability, in nats."""
    return -np.log(np.maximum(probabilities, MIN_PROBABILITY))


def choice_calibration(probabilities: list[np.ndarray], gold: list[int]) -> tuple[Calibration, np.ndarray]:
    """Return the calibration of the most probable classes, and −log of the gold classes' probabilities, float64 [n].

    The calibration includes log_loss, the mean of these −logs in nats, and brier, the mean over the examples of
    Σ (p − y)² over the classes, where y is 1 for the gold class and 0 for the others: 0 to 2 (Brier 1950).

    Args:
        probabilities: float64 [C] of each example.
        gold: The index of each gold class.
    """
    of_gold = np.array([row[number] for row, number in zip(probabilities, gold, strict=True)])
    squares = np.array([row @ row for row in probabilities])
    best = [int(row.argmax()) for row in probabilities]
    confidence = np.array([row[number] for row, number in zip(probabilities, best, strict=True)])
    losses = log_losses(of_gold)
    more = {"log_loss": float(losses.mean()), "brier": float(np.mean(squares - 2 * of_gold + 1))}
    return calibration(confidence, np.equal(best, gold), more), losses
