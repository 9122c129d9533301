"""The learning rate as a pure function of the step: one dataclass a schedule, the union at the end is all there is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from bertie.errors import UsageError, require_range


@dataclass(frozen=True)
class Linear:
    """Up to the full rate over the warm-up, then straight down, reaching 0 after the last step (Devlin et al. 2018)."""

    kind: Literal["linear"] = "linear"
    warmup: float = 0.01
    """Share of the steps that the rate takes to rise."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", low=0, high=1)

    def factor(self, step: int, steps: int) -> float:
        """What to multiply the learning rate with in `step` (from 0) of `steps`."""
        return _rise(self.warmup, step, steps) or 1 - _fallen(self.warmup, step, steps)


@dataclass(frozen=True)
class Cosine:
    """Up over the warm-up, then down along half a cosine to a share of the full rate (Loshchilov & Hutter 2017)."""

    kind: Literal["cosine"] = "cosine"
    warmup: float = 0.01
    """Share of the steps that the rate takes to rise."""
    floor: float = 0.0
    """What is left of the full rate after the last step."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", "floor", low=0, high=1)

    def factor(self, step: int, steps: int) -> float:
        left = (1 + math.cos(math.pi * _fallen(self.warmup, step, steps))) / 2
        return _rise(self.warmup, step, steps) or self.floor + (1 - self.floor) * left


@dataclass(frozen=True)
class SlantedTriangular:
    """A short rise and a long fall, from and to a fixed share of the full rate (Howard & Ruder 2018, section 3.2)."""

    kind: Literal["slanted_triangular"] = "slanted_triangular"
    warmup: float = 0.1
    """Share of the steps that the rate takes to rise: the paper's cut_frac."""
    ratio: float = 32.0
    """How many times smaller than the full rate the lowest one is."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", low=0, high=1)
        require_range("schedule", self, "ratio", low=1)

    def factor(self, step: int, steps: int) -> float:
        cut = math.floor(steps * self.warmup)
        share = step / cut if step < cut else 1 - (step - cut) / (steps - cut)
        return (1 + share * (self.ratio - 1)) / self.ratio


@dataclass(frozen=True)
class WarmupStableDecay:
    """Up over the warm-up, then the full rate, then straight down to 0 over the decay (Hu et al. 2024)."""

    kind: Literal["warmup_stable_decay"] = "warmup_stable_decay"
    warmup: float = 0.01
    """Share of the steps that the rate takes to rise."""
    decay: float = 0.1
    """Share of the steps, the last ones, that the rate takes to fall."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", "decay", low=0, high=1)
        if self.warmup + self.decay > 1:
            raise UsageError("schedule: warmup and decay are more than 1 together")

    def factor(self, step: int, steps: int) -> float:
        return _rise(self.warmup, step, steps) or min(1.0, (steps - step) / max(round(self.decay * steps), 1))


@dataclass(frozen=True)
class InverseSquareRoot:
    """Up over the warm-up, then down with 1 / √step (Vaswani et al. 2017, section 5.3): no end is built in."""

    kind: Literal["inverse_square_root"] = "inverse_square_root"
    warmup: float = 0.01
    """Share of the steps that the rate takes to rise."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", low=0, high=1)

    def factor(self, step: int, steps: int) -> float:
        full = round(self.warmup * steps) + 1  # steps until the full rate is reached
        return _rise(self.warmup, step, steps) or math.sqrt(full / (step + 1))


Schedule = Linear | Cosine | SlantedTriangular | WarmupStableDecay | InverseSquareRoot


def _rise(warmup: float, step: int, steps: int) -> float:
    """The factor while the rate rises, no step at 0; 0 from the step on that has the full rate."""
    rising = round(warmup * steps)
    return (step + 1) / (rising + 1) if step < rising else 0.0


def _fallen(warmup: float, step: int, steps: int) -> float:
    """How much of the way from the full rate to the end lies behind `step`: 0 … just under 1."""
    rising = round(warmup * steps)
    return (step - rising) / (steps - rising) if step >= rising else 0.0
