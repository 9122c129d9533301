"""Say where a training hangs: the lines of code in which all threads of this process wait, on stderr.

In a training of several ranks, one that is stuck stops all others, which wait for it in an exchange. Each rank watches itself.
The one that is in no exchange holds the others up.
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_SECONDS = 1800.0  # before the first step, which compiles
LEAST_SECONDS = 300.0
STEPS = 10  # as long as so many of the longest step
SLACK = 0.1  # of the limit: the timer is not set again sooner, because that starts a thread


class Watchdog:
    """A timer that each sign of life sets again. If it ends, Python prints where its threads are, once for each hang."""

    def __init__(self) -> None:
        self._step, self._since, self._longest = 0, time.monotonic(), 0.0
        self.limit, self._set_at = FIRST_SECONDS, -FIRST_SECONDS

    def beat(self, step: int | None = None) -> None:
        """Note that the training goes on. step: the steps that are done, if one was done since the last call."""
        now = time.monotonic()
        limit = self.limit
        if step is not None:
            self._longest = max(self._longest, now - self._since) if self._step else 0.0  # the first one compiles
            self._step, self.limit = step, max(LEAST_SECONDS, STEPS * self._longest)
        self._since = now
        if self.limit != limit or now - self._set_at > SLACK * limit:
            self._set_at = now
            if sys.__stderr__ is not None:
                faulthandler.dump_traceback_later((1 + SLACK) * self.limit, file=sys.__stderr__)


@contextmanager
def watchdog() -> Iterator[Watchdog]:
    """Watch the process in the block. A rank that reports nothing else reports hangs, too."""
    dog = Watchdog()
    dog.beat()
    try:
        yield dog
    finally:
        faulthandler.cancel_dump_traceback_later()
