"""95 % intervals of proportions, by resampling sentences or documents (Efron 1979).

U  units that are resampled: sentences or documents    K  sums
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from bertie.base import seeding

SAMPLES = 1000
LEVEL = 95.0
"""Confidence level in percent."""
SPLIT, RESAMPLE = 20, 21  # random streams of the purpose INSPECT
_COUNTS_AT_ONCE = 2_000_000  # bounds the memory of the samples


@dataclass(frozen=True, eq=False)
class UnitSums:
    """Sums per unit, such as the right and all words of a sentence. Units without a word may be missing."""

    units: Int[np.ndarray, " R"]
    """Numbers of the units, each once."""
    sums: Float[np.ndarray, "R K"]
    """Their sums."""

    @classmethod
    def of(cls, unit: Int[np.ndarray, " n"], terms: Float[np.ndarray, "n K"]) -> UnitSums:
        """Add up the terms of every unit. `unit`: the unit of each row of `terms`."""
        units, rows = np.unique(unit, return_inverse=True)
        sums = np.zeros((len(units), terms.shape[1]), terms.dtype)
        np.add.at(sums, rows, terms)
        return cls(units, sums)

    @classmethod
    def join(cls, parts: list[UnitSums], columns: int) -> UnitSums:
        """Put together the sums of different units. `columns`: K."""
        nothing = cls(np.zeros(0, int), np.zeros((0, columns)))
        return cls(*(np.concatenate([getattr(p, name) for p in (nothing, *parts)]) for name in ("units", "sums")))


def resample(units: int, parts: Iterable[UnitSums]) -> list[Float[np.ndarray, "{1+SAMPLES} K"]]:
    """Draw samples of all units. Return for each part its total sums, and after them the total sums in every sample.

    Args:
        units: Number of all units: they are numbered from 0.
        parts: Sums per unit. All parts are computed on the same samples, so their differences are paired.
    """
    parts = list(parts)
    totals = [np.zeros((1 + SAMPLES, part.sums.shape[1])) for part in parts]
    for part, total in zip(parts, totals, strict=True):
        total[0] = part.sums.sum(0, dtype=float)
    rng = seeding.generator(0, seeding.INSPECT, RESAMPLE)
    at_once = max(1, _COUNTS_AT_ONCE // max(units, 1))
    for start in range(1, 1 + SAMPLES if units else 0, at_once):
        rows = range(start, min(start + at_once, 1 + SAMPLES))
        counts = np.stack([np.bincount(rng.integers(0, units, units), minlength=units) for _ in rows]).astype(float)
        for part, total in zip(parts, totals, strict=True):
            total[rows.start : rows.stop] = counts[:, part.units] @ part.sums
    return totals


def resample_alone(sums: UnitSums) -> Float[np.ndarray, "{1+SAMPLES} K"]:
    """Return the total sums, and those in samples of the units up to the last one that has a word."""
    [totals] = resample(int(sums.units.max(initial=-1)) + 1, [sums])
    return totals


def interval(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the ends of the interval of a statistic from its values on the samples. NaN marks a sample without data."""
    found = values[np.isfinite(values)]
    if not len(found):
        return math.nan, math.nan
    tail = (100 - LEVEL) / 2
    low, high = np.percentile(found, [tail, 100 - tail])
    return float(low), float(high)


def with_interval(name: str, values: Float[np.ndarray, " {1+SAMPLES}"], prefix: str | None = None) -> dict[str, float]:
    """Return columns of a row: a statistic, and `PREFIXlow` and `PREFIXhigh`, the ends of its interval.

    Args:
        name: Name of the column with the statistic.
        values: The statistic, and its values on the samples.
        prefix: Start of the other two names. None: the name and an underscore.
    """
    prefix = f"{name}_" if prefix is None else prefix
    low, high = interval(values[1:])
    return {name: float(values[0]), f"{prefix}low": low, f"{prefix}high": high}


def meaning_of_interval(prefix: str = "", of: str = "") -> dict[str, str]:
    """Return what the columns with the ends of an interval hold. `of`: the statistic, in a few words; empty: the one before."""
    return {
        f"{prefix}{side}": f"{end} end of the {LEVEL:g} % interval" + (f" of the {of}" if of else "")
        for side, end in (("low", "lower"), ("high", "upper"))
    }


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide element by element. 0 / 0 is NaN, without a warning."""
    return np.divide(numerator, denominator, out=np.full(numerator.shape, np.nan), where=denominator > 0)


def in_report_half(units: int) -> Bool[np.ndarray, " U"]:
    """Split units into a selection half and a report half, at random but always the same way."""
    reported = np.zeros(units, bool)
    reported[seeding.generator(0, seeding.INSPECT, SPLIT).permutation(units)[(units + 1) // 2 :]] = True
    return reported
