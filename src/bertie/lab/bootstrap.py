"""Intervals by resampling dev examples (Efron 1979), and from the variance between seeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from bertie.base import seeding
from bertie.inspect.intervals import SAMPLES, interval
from bertie.tasks.example_sums import FORMULAS

SeedScores = tuple[list[float], Float[np.ndarray, "{SAMPLES} seeds"] | None]
"""The score of each run, and of each run on every sample of the examples; None: the examples are not known."""


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float | None
    """Lower end of the interval; None if nothing could be resampled."""
    high: float | None

    @property
    def significant(self) -> bool:
        """Return whether the interval excludes 0."""
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
    """Return how often each sample has each example."""
    rng = seeding.generator(0, seeding.BOOTSTRAP, stream)
    counts = np.empty((SAMPLES, examples), np.float32)
    for row in counts:
        row[:] = np.bincount(rng.integers(0, examples, examples), minlength=examples)
    return counts


def estimate(*sides: SeedScores) -> Estimate:
    """Return the mean of runs that differ in their seed, or the difference of the means of two sides, with its interval.

    The dev examples are the same on both sides and are resampled together. The seeds of both sides are independent.
    """
    value = float(np.subtract.reduce([np.mean(values) for values, _ in sides]))
    if any(scores is None for _, scores in sides) and all(len(values) == 1 for values, _ in sides):
        return Estimate(value, None, None)
    means = [np.full(SAMPLES, np.mean(values)) if scores is None else scores.mean(1) for values, scores in sides]
    samples = np.subtract.reduce(means) + _deviations(*(values for values, _ in sides))
    return Estimate(value, *interval(samples))


def _deviations(*sides: list[float]) -> np.ndarray:
    """Return how much other seeds may change the mean, or the difference of two means, in every sample, [SAMPLES].

    Resampling a few seeds would give intervals that are far too narrow: with three, a fifth to an eighth of them miss the
    mean. So the deviations have Student's t-distribution. Both sides have the same variance, which they estimate together.
    The variance of the values includes the variance between the examples, as far as runs differ in them: the interval counts
    this part twice, and is rather too wide.
    """
    degrees = sum(len(values) - 1 for values in sides)
    if not degrees:
        return np.zeros(SAMPLES)
    variance = sum(float(np.var(values)) * len(values) for values in sides) / degrees
    scale = np.sqrt(variance * sum(1 / len(values) for values in sides))
    quantiles = stdtrit(degrees, (np.arange(SAMPLES) + 0.5) / SAMPLES)
    return scale * seeding.generator(0, seeding.BOOTSTRAP, 0, degrees).permutation(quantiles)
