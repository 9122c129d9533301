"""The learning rate as a pure function of the step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertie.errors import require_range


@dataclass(frozen=True)
class Linear:
    """Up to the full rate over the warm-up, then straight down, reaching 0 after the last step."""

    kind: Literal["linear"] = "linear"
    warmup: float = 0.01
    """Share of the steps that the rate takes to rise."""

    def __post_init__(self) -> None:
        require_range("schedule", self, "warmup", low=0, high=1)

    def factor(self, step: int, steps: int) -> float:
        """What to multiply the learning rate with in `step` (from 0) of `steps`."""
        rising = round(self.warmup * steps)
        return (step + 1) / (rising + 1) if step < rising else (steps - step) / (steps - rising)


Schedule = Linear  # | Cosine | …: a new schedule is one dataclass and one name here
