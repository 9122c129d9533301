"""Whether a model is as often right as it is sure: expected calibration error, reliability diagram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bertie.report import SERIES, Page, baseline_color

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS = 15
LEAST = 1e-15  # a probability that is less counts as this in a logarithm


@dataclass(frozen=True, eq=False)
class Calibration:
    """Of BINS bins of equal width over the probability of what was predicted, each without its lower and with its upper edge
    (the first has both): count int64, right (the share of right ones) and sure (their mean probability) float64, all [BINS].

    ece: Σ count/n · |right − sure| (Guo et al. 2017, section 2). more: other measures of the probabilities, by name.
    """

    count: np.ndarray
    right: np.ndarray
    sure: np.ndarray
    more: dict[str, float]
    of: str  # what is right or wrong: "examples"
    name: str = "calibration"

    @property
    def ece(self) -> float:
        return float(np.abs(self.right - self.sure) @ self.count / max(self.count.sum(), 1))

    def as_json(self) -> dict[str, Any]:
        edges = np.linspace(0, 1, BINS + 1).round(4).tolist()
        bins = [
            {"from": low, "to": high, "count": count, "accuracy": right, "confidence": sure}
            for low, high, count, right, sure in zip(
                edges[:-1], edges[1:], self.count.tolist(), self.right.tolist(), self.sure.tolist(), strict=True
            )
            if count
        ]
        return {"ece": self.ece, **self.more, "bins": bins}

    def draw(self, page: Page) -> None:
        page.heading("How sure, how often right")
        more = "".join(f"; {name.replace('_', ' ')} {value:.4f}" for name, value in self.more.items())
        page.paragraph(
            f"Expected calibration error {self.ece:.4f}: the mean distance between how sure the model is and how often it is "
            f"right, over {BINS} bins of equal width{more}. A dot above the line: it could be surer; below: it is too sure. "
            "The larger a dot, the more are in its bin."
        )
        total = int(self.count.sum())
        about = f"Expected calibration error {self.ece:.4f} over {total:,} {self.of}"
        page.picture(self._reliability, "share that is right, by the probability of what was predicted", about, 3.4)
        page.picture(self._confidences, f"{self.of}, by the probability of what was predicted", about, 2.8)

    def _reliability(self, axes: Axes, theme: str) -> None:
        axes.plot([0, 1], [0, 1], color=baseline_color(theme), linewidth=1, linestyle=(0, (4, 3)))
        there = self.count > 0
        sure, right = self.sure[there], self.right[there]
        axes.vlines(sure, sure, right, color=SERIES[theme][1], linewidth=2, alpha=0.7)
        sizes = 18 + 150 * self.count[there] / self.count.max()
        axes.scatter(sure, right, s=sizes, color=SERIES[theme][0], zorder=3, linewidths=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.05)
        axes.grid()
        axes.set_xlabel("mean probability of the bin")

    def _confidences(self, axes: Axes, theme: str) -> None:
        middle = (np.arange(BINS) + 0.5) / BINS
        right = np.round(self.count * self.right)
        axes.bar(middle, right, width=0.85 / BINS, color=SERIES[theme][0], label="right")
        axes.bar(middle, self.count - right, width=0.85 / BINS, bottom=right, color=SERIES[theme][1], label="wrong")
        axes.set_xlim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.grid(axis="y")
        axes.locator_params(axis="y", nbins=5, integer=True)
        axes.set_xlabel("probability")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2, handlelength=1.4)


def calibration(sure: np.ndarray, right: np.ndarray, more: dict[str, float], of: str = "examples") -> Calibration:
    """sure: float64 [n], the probability of what was predicted; right: bool [n], whether that is so."""
    bins = np.clip(np.searchsorted(np.linspace(0, 1, BINS + 1), sure, side="left") - 1, 0, BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    shares, means = (
        np.bincount(bins, weights=values, minlength=BINS) / np.maximum(count, 1)
        for values in (right.astype(np.float64), sure)
    )
    return Calibration(count, shares, means, more, of)


def log_losses(probabilities: np.ndarray) -> np.ndarray:
    """−log of each, nats."""
    return -np.log(np.maximum(probabilities, LEAST))
