"""A budget of time for a run: the schedule follows the clock, and the run ends when the time is over.

The rest of the schedule is always spread over the rest of the time. A run on a busy machine thus makes fewer steps, and
still ends with the whole schedule behind it.
"""

from __future__ import annotations

import re
import time
from collections import deque
from dataclasses import dataclass, field
from mmap import mmap
from statistics import median_low
from typing import ClassVar

import numpy as np

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.training.distributed import SINGLE_PROCESS, Ranks

PARTS = 1_000_000
"""Schedules and phases count steps. With a clock, a run has so many, and `Clock.part_of` is the current one."""
Measured = dict[str, tuple[float, ...]]
"""Seconds of the last evaluations and of the last checkpoints."""

MEASURED = 5  # steps, evaluations and checkpoints to remember
FORWARD_SHARE = 1 / 3  # of the operations of a training step; an evaluation needs no more
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str, key: str) -> float:
    """Return the seconds of a duration, such as "24h", "1.5h", "90m" or "30s".

    Args:
        text: The duration.
        key: Key of the configuration, for the error message.

    Raises:
        UsageError: It has another form, or is 0 or longer than 366 days.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])", text.strip())
    if not match:
        raise UsageError(f"{key} is {text!r}: give a number and its unit, such as 30s, 90m, 24h or 2d")
    seconds = float(match[1]) * _UNITS[match[2]]
    if not 0 < seconds <= 366 * _UNITS["d"]:
        raise UsageError(f"{key} is {text!r}: give more than 0 s and at most 366 d")
    return seconds


@dataclass(eq=False)
class Clock:
    """The time of a run, which all ranks agree on once per step. Evaluations and checkpoints count, too.

    A `Length`, as `StepCount` is: arguments that only the other one needs are ignored.
    """

    parts: ClassVar = PARTS
    """Into so many parts, schedules and phases divide the run."""
    unit: ClassVar = "s"
    """The unit of the progress bar."""
    total: float
    """Seconds of the whole run: the budget."""
    ranks: Ranks = SINGLE_PROCESS
    begun: float = field(default_factory=time.monotonic)
    """When the run began, in seconds of `time.monotonic`."""
    progress: float = 0.0
    """Fraction of the schedule that is complete after the last step, in [0, 1]."""
    measured: Measured = field(default_factory=Measured)
    _left: float = 0.0  # seconds at the time of `progress`
    _first: float = 0.0  # seconds of the first step of this process
    # Seconds of the last steps after it.
    _steps: deque[float] = field(default_factory=lambda: deque[float](maxlen=MEASURED))
    _expected: float = 0.0  # seconds of an evaluation, until one was measured
    _kept: float = 0.0  # seconds for the last evaluation and checkpoint
    # What `estimate` needs: progress, `_left`, and when the steps end. In memory that forked processes share, because those
    # that prepare steps were forked before most of it was known.
    _shared: np.ndarray = field(default_factory=lambda: np.frombuffer(mmap(-1, 3 * 8), np.float64))

    def start(self, elapsed: float, progress: float, measured: Measured) -> float:
        """Begin, or resume, before the first step of this process.

        Args:
            elapsed: Seconds of the run in earlier processes.
            progress: The progress at the end of them.
            measured: What they measured.

        Returns:
            When the run began, without the time between its processes, in seconds of `time.monotonic`.

        Raises:
            UserError: No time is left, and the run has made no step.
        """
        self.begun -= elapsed
        self.measured |= measured
        self._keep()
        self.progress, self._left = progress, self.left
        self._share()
        if self.ranks.broadcast(progress == 0 and self._left <= 0):
            raise UserError(f"the budget of {console.duration(self.total)} is over before the first step: give more")
        return self.begun

    @property
    def state(self) -> tuple[float, Measured]:
        """Return what `start` needs to resume, besides the elapsed seconds."""
        return self.progress, self.measured

    def done(self, step: int, seconds: float) -> int:  # noqa: ARG002
        """Return the units of the progress bar that are done after `step` steps and `seconds` of training."""
        return round(seconds)

    def position(self, step: int, seconds: float) -> str:
        """Say how far the run is, for people."""
        return f"step {step} and {seconds:.0f} of {self.total:.0f} s"

    def describe(self, parts: int) -> str:
        """Say how long some parts of the run are, for people."""
        return f"{console.duration(self.total * parts / PARTS)} of steps"

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float:
        """Seconds for further steps, without the last evaluation and checkpoint."""
        return self.total - self._kept - self.elapsed

    def _seconds(self, work: str) -> float:
        """Return the seconds of some work: as many as the last times. A single slow one does not count, as for steps."""
        if work in self.measured:
            return median_low(self.measured[work])
        return self._expected if work == "evaluation" else 0.0

    def measure(self, work: str, seconds: float) -> None:
        """Keep time for work that follows the last step, too."""
        self.measured[work] = (*self.measured.get(work, ()), seconds)[-MEASURED:]
        self._keep()

    def _keep(self) -> None:
        """Keep time for the last evaluation and checkpoint, as far as their durations are known."""
        kept = self._seconds("evaluation") + self._seconds("checkpoint")
        self._left -= kept - self._kept  # to know that is no progress: it shortens the rest of the schedule
        self._kept = kept
        self._share()

    def fits(self, work: str) -> bool:
        """Return whether there is time for work now, and again after the last step, and for a step. For all ranks at once."""
        return self.ranks.broadcast(self.left >= self._seconds(work) + self._step)

    def tick(self, seconds: float, evaluation: float = 0.0) -> None:
        """Advance after a step.

        Args:
            seconds: Duration of the step.
            evaluation: Tokens of an evaluation, as a multiple of the tokens of the step. Its time counts until one was measured.
        """
        if not self._first:  # this step has also laid out the text, so it says little about the time of others
            self._first = seconds
            self._advance(ends=self.left < 0)
            return
        self._steps.append(seconds)
        if self._step_is_known:
            self._expected = FORWARD_SHARE * evaluation * self._step
            self._keep()
        self._advance(ends=self.left < self._step)

    def update(self) -> None:
        """Advance after an evaluation or a checkpoint. A step follows, however little time is left."""
        self._advance(ends=False)

    def _advance(self, ends: bool) -> None:
        progress = 1.0 if ends else min(self.estimate(0), 1 - 1 / PARTS)
        self.progress, self._left = self.ranks.broadcast([progress, self.left])
        self._share()

    def _share(self) -> None:
        self._shared[:] = (self.progress, self._left, self.begun + self.total - self._kept)

    @property
    def _step(self) -> float:
        """Seconds of a step. A single slow one, as in a suspended process, does not count."""
        return median_low(self._steps) if self._step_is_known else min([self._first, *self._steps])

    @property
    def _step_is_known(self) -> bool:
        """Return whether a slow step is known to be an exception."""
        return len(self._steps) > 2

    def estimate(self, step: int) -> float:  # noqa: ARG002
        """Return the progress before a step, that is now, by this process alone, in [0, 1]. Forked processes know it, too."""
        progress, left, end = map(float, self._shared)
        return 1.0 if left <= 0 else min(1.0, max(progress, 1 - (1 - progress) * (end - time.monotonic()) / left))

    def is_over(self, steps_done: int) -> bool:  # noqa: ARG002
        """Return whether the run has no further step after so many."""
        return self.progress >= 1

    def part_of(self, step: int) -> int:  # noqa: ARG002
        """Return the part of the run, 0 … parts − 1, that a step belongs to: the next one, from 0."""
        return min(int(self.progress * PARTS), PARTS - 1)
