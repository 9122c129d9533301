"""How long a run trains: a number of steps (`StepCount`), or a time (`Clock`). Both answer the same questions."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

from bertie.base import console
from bertie.training.clock import Clock, Measured


@dataclass(frozen=True)
class StepCount:
    """A run of a number of optimizer steps. `Clock` explains the methods."""

    unit: ClassVar = "steps"
    state: ClassVar[tuple[float, Measured]] = (0.0, {})
    parts: int
    """Optimizer steps of the whole run."""

    @property
    def total(self) -> int:
        return self.parts

    def start(self, elapsed: float, progress: float, measured: Measured) -> float:  # noqa: ARG002
        return time.monotonic() - elapsed

    def is_over(self, steps_done: int) -> bool:
        return steps_done >= self.parts

    def part_of(self, step: int) -> int:
        return min(step, self.parts - 1)

    def estimate(self, step: int) -> float:
        return step / self.parts

    def done(self, step: int, seconds: float) -> int:  # noqa: ARG002
        return step

    def position(self, step: int, seconds: float) -> str:  # noqa: ARG002
        return f"step {step} of {self.parts}"

    def describe(self, parts: int) -> str:
        return console.plural(parts, "step")

    def fits(self, work: str) -> bool:  # noqa: ARG002
        return True

    def tick(self, seconds: float, evaluation: float) -> None: ...
    def update(self) -> None: ...
    def measure(self, work: str, seconds: float) -> None: ...


Length = StepCount | Clock
