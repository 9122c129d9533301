"""A budget of time for a run: the schedule follows the clock, and the run ends when the time is over.

The rest of the schedule is always spread over the rest of the time. A run on a busy machine thus makes fewer steps, and
still ends with the whole schedule behind it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

from bertie import console
from bertie.errors import UsageError, UserError
from bertie.training.distributed import SINGLE_PROCESS, Ranks

PARTS = 1_000_000
"""Schedules and phases count steps. With a clock, a run has so many, and `Clock.part` is the current one."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, key: str) -> float:
    """Return the seconds of a duration, such as "24h", "1.5h", "90m" or "30s".

    Args:
        text: The duration.
        key: Key of the configuration, for the error message.

    Raises:
        UsageError: It has another form, or is not above 0.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", text.strip())
    if not match or not 0 < (seconds := float(match[1]) * _UNITS[match[2]]) <= 366 * _UNITS["d"]:
        raise UsageError(f"{key} is {text!r}: give a time with its unit, such as 30s, 90m, 24h or 2d")
    return seconds


@dataclass(eq=False)
class Clock:
    """The time of a run, which all ranks agree on once per step. Evaluations and checkpoints count, too."""

    budget: float
    """Seconds of the whole run."""
    ranks: Ranks = SINGLE_PROCESS
    begun: float = field(default_factory=time.monotonic)
    """When the run began, in seconds of `time.monotonic`."""
    progress: float = 0.0
    """Fraction of the schedule that is complete after the last step, in [0, 1]."""
    _left: float = 0.0  # seconds at that time
    _step: float = 0.0  # mean seconds of the last steps
    _reserved: dict[str, float] = field(default_factory=dict[str, float])

    def start(self, elapsed: float, progress: float) -> None:
        """Begin, or resume, before the first step of this process.

        Args:
            elapsed: Seconds of the run in earlier processes.
            progress: The progress at the end of them.

        Raises:
            UserError: No time is left, and the run has made no step.
        """
        self.begun -= elapsed
        self.progress, self._left = progress, self.left
        if self.ranks.broadcast(progress == 0 and self._left <= 0):
            raise UserError(
                f"the budget of {console.duration(self.budget)} is over before the first step: give the run more time"
            )

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float:
        """Seconds for further steps, without the last evaluation and checkpoint."""
        return self.budget - sum(self._reserved.values()) - self.elapsed

    def reserve(self, work: str, seconds: float) -> None:
        """Keep time for work that follows the last step, at least as long as it took before."""
        self._reserved[work] = max(seconds, self._reserved.get(work, 0.0))

    def tick(self, seconds: float) -> None:
        """Advance after a step.

        Args:
            seconds: Duration of the step.
        """
        self._step = seconds if not self._step else 0.8 * self._step + 0.2 * seconds
        progress = self.estimate()
        left = self.left
        progress = 1.0 if left < self._step else progress
        self.progress, self._left = self.ranks.broadcast([progress, left])

    def estimate(self) -> float:
        """Return the progress at this moment, by this process alone, in [0, 1]."""
        if self._left <= 0:
            return 1.0
        return min(1.0, max(self.progress, 1 - (1 - self.progress) * self.left / self._left))

    @property
    def ended(self) -> bool:
        """Whether the last step was the last one of the run."""
        return self.progress >= 1

    @property
    def part(self) -> int:
        """The part of the run, 0 … PARTS − 1, that the next step belongs to."""
        return min(int(self.progress * PARTS), PARTS - 1)
