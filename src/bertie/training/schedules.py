"""Learning rate schedules, as pure functions of the step. The union `Schedule` lists all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from bertie.base.config import Fraction, Range, check_ranges, ranges
from bertie.base.errors import UsageError


@dataclass(frozen=True)
class LinearDecay:
    """Linear warmup, then linear decay to 0 after the last step (Devlin et al. 2018)."""

    kind: Literal["linear"] = "linear"
    warmup: Fraction = 0.01
    """Fraction of the steps in which the learning rate rises to its peak."""

    __post_init__ = ranges("schedule")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in `step` (from 0) of `steps`: 0 … 1."""
        return _warmup_factor(self.warmup, step, steps) or 1 - _decay_progress(self.warmup, step, steps)


@dataclass(frozen=True)
class Cosine:
    """Linear warmup, then decay along half a cosine to a fraction of the peak (Loshchilov & Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup: Fraction = 0.01
    """Fraction of the steps in which the learning rate rises to its peak."""
    floor: Fraction = 0.0
    """Learning rate after the last step, as a fraction of the peak."""

    __post_init__ = ranges("schedule")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in `step` (from 0) of `steps`: 0 … 1."""
        cosine = (1 + math.cos(math.pi * _decay_progress(self.warmup, step, steps))) / 2
        return _warmup_factor(self.warmup, step, steps) or self.floor + (1 - self.floor) * cosine


@dataclass(frozen=True)
class SlantedTriangular:
    """Linear warmup from 1 / ratio of the peak, then linear decay back to it (Howard & Ruder 2018, section 3.2)."""

    kind: Literal["slanted_triangular"] = "slanted_triangular"
    warmup: Fraction = 0.1
    """Fraction of the steps in which the learning rate rises: the paper's cut_frac."""
    ratio: Annotated[float, Range(1)] = 32.0
    """The peak learning rate divided by the lowest one."""

    __post_init__ = ranges("schedule")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in `step` (from 0) of `steps`: 0 … 1."""
        cut = math.floor(steps * self.warmup)
        height = step / cut if step < cut else 1 - (step - cut) / (steps - cut)
        return (1 + height * (self.ratio - 1)) / self.ratio


@dataclass(frozen=True)
class WarmupStableDecay:
    """Linear warmup, then the constant peak, then linear decay to 0 (Hu et al. 2024)."""

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    warmup: Fraction = 0.01
    """Fraction of the steps in which the learning rate rises to its peak."""
    decay: Fraction = 0.1
    """Fraction of the steps, at the end, in which the learning rate falls to 0."""

    def __post_init__(self) -> None:
        check_ranges("schedule", self)
        if self.warmup + self.decay > 1:
            raise UsageError("schedule: warmup + decay is more than 1: lower one of them")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in `step` (from 0) of `steps`: 0 … 1."""
        return _warmup_factor(self.warmup, step, steps) or min(1.0, (steps - step) / max(round(self.decay * steps), 1))


@dataclass(frozen=True)
class InverseSquareRoot:
    """Linear warmup, then decay with 1 / √step, which never reaches 0 (Vaswani et al. 2017, section 5.3)."""

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    warmup: Fraction = 0.01
    """Fraction of the steps in which the learning rate rises to its peak."""

    __post_init__ = ranges("schedule")

    def factor(self, step: int, steps: int) -> float:
        """Return the factor of the peak learning rate in `step` (from 0) of `steps`: 0 … 1."""
        steps_to_peak = round(self.warmup * steps) + 1
        return _warmup_factor(self.warmup, step, steps) or math.sqrt(steps_to_peak / (step + 1))


Schedule = LinearDecay | Cosine | SlantedTriangular | WarmupStableDecay | InverseSquareRoot


def _warmup_factor(warmup: float, step: int, steps: int) -> float:
    """Return the factor during warmup, which is never 0; or 0 from the first step at the peak on."""
    warmup_steps = round(warmup * steps)
    return (step + 1) / (warmup_steps + 1) if step < warmup_steps else 0.0


def _decay_progress(warmup: float, step: int, steps: int) -> float:
    """Return the fraction of the decay that lies before `step`: 0 up to, but not including, 1."""
    warmup_steps = round(warmup * steps)
    return (step - warmup_steps) / (steps - warmup_steps) if step >= warmup_steps else 0.0
