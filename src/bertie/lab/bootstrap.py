"""Intervals by resampling dev examples and seeds (Efron 1979)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from bertie import seeding
from bertie.tasks.example_sums import FORMULAS

SAMPLES = 1000
LEVEL = 95.0
"""Confidence level in percent."""


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float | None
    """Lower end of the interval; None if nothing could be resampled."""
    high: float | None

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def resampled_scores(
    formula: str, rows: Float[np.ndarray, "examples K"], stream: int
) -> Float[np.ndarray, " {SAMPLES}"]:
    """Return the score of one run on every sample of the dev examples.

    Args:
        formula: A name in `example_sums.FORMULAS`.
        rows: What the formula needs of each example.
        stream: Runs with the same stream and number of examples get the same samples, so their differences are paired.
    """
    return FORMULAS[formula](_counts(len(rows), stream) @ rows)


@lru_cache(maxsize=8)
def _counts(examples: int, stream: int) -> Float[np.ndarray, "{SAMPLES} examples"]:
    """How often each sample has each example."""
    rng = seeding.generator(0, seeding.BOOTSTRAP, stream)
    counts = np.empty((SAMPLES, examples), np.float32)
    for row in counts:
        row[:] = np.bincount(rng.integers(0, examples, examples), minlength=examples)
    return counts


def estimate(values: list[float], scores: Float[np.ndarray, "{SAMPLES} seeds"] | None) -> Estimate:
    """Return the mean of runs that differ in their seed, with its interval.

    Args:
        values: The score of each run.
        scores: The score of each run on every sample of the examples; None: the examples are not known.
    """
    return _interval(float(np.mean(values)), _means(values, scores, 0))


def difference(
    a: list[float],
    b: list[float],
    a_scores: Float[np.ndarray, "{SAMPLES} seeds"] | None,
    b_scores: Float[np.ndarray, "{SAMPLES} seeds"] | None,
) -> Estimate:
    """Return mean(a) − mean(b) with its interval.

    The dev examples are the same on both sides and are resampled together. The seeds are resampled on each side.
    """
    sides = _means(a, a_scores, 0), _means(b, b_scores, 1)
    samples = None if sides[0] is None or sides[1] is None else sides[0] - sides[1]
    return _interval(float(np.mean(a) - np.mean(b)), samples)


def _means(values: list[float], scores: np.ndarray | None, side: int) -> np.ndarray | None:
    """Return the mean of the runs in every sample, [SAMPLES]. None: there is one run and its examples are unknown.

    Resampling n seeds gives a variance that is too small by (n − 1) / n. The deviations are scaled to correct this.
    """
    n = len(values)
    if scores is None:
        if n < 2:
            return None
        scores = np.tile(np.array(values), (SAMPLES, 1))
    center = scores.mean(1)
    if n < 2:
        return center
    drawn = seeding.generator(0, seeding.BOOTSTRAP, side, n).integers(0, n, (SAMPLES, n))
    deviation = np.take_along_axis(scores, drawn, 1).mean(1) - center
    return center + np.sqrt(n / (n - 1)) * deviation


def _interval(value: float, samples: np.ndarray | None) -> Estimate:
    if samples is None:
        return Estimate(value, None, None)
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(samples, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))
