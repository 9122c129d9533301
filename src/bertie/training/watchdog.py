"""Say where a training hangs: the rank, its last step, and the lines of code in which it waits.

In a training of several ranks, one that is stuck stops all others, which wait for it in an exchange. Each rank watches itself.
The one that is in no exchange holds the others up.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertie import console
from bertie.training.distributed import Ranks

FIRST_SECONDS = 1800.0  # before the first step, which compiles
LEAST_SECONDS = 300.0
STEPS = 10  # as long as so many of the longest step
FRAMES = 5


class Watchdog:
    """Watches the thread that creates it."""

    def __init__(self, ranks: Ranks):
        self._place = f"rank {ranks.rank} of {ranks.count}: " if ranks.count > 1 else ""
        self._watched = threading.get_ident()
        self._changed = threading.Condition()
        self._step, self._since, self._longest, self._ended = 0, time.monotonic(), 0.0, False
        self._limit = FIRST_SECONDS

    def beat(self, step: int | None = None) -> None:
        """Note that the training goes on. step: the steps that are done, if one was done since the last call."""
        with self._changed:
            now = time.monotonic()
            if step is not None:
                self._longest = max(self._longest, now - self._since) if self._step else 0.0  # the first one compiles
                self._step, self._limit = step, max(LEAST_SECONDS, STEPS * self._longest)
            self._since = now
            self._changed.notify()

    def watch(self) -> None:
        """Wait until `end`. Say of each hang where the thread is: after the limit, then each time that it lasts twice as long."""
        since, limit = -1.0, 0.0
        with self._changed:
            while not self._ended:
                if since != self._since:
                    since, limit = self._since, self._limit
                due = since + limit - time.monotonic()
                if due > 0:
                    self._changed.wait(due)
                else:
                    console.warn(self._message())
                    limit *= 2

    def end(self) -> None:
        """End `watch`."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _message(self) -> str:
        frames = traceback.extract_stack(sys._current_frames().get(self._watched))
        places = [f"{_short(frame.filename)}:{frame.lineno} ({frame.name})" for frame in frames[: -FRAMES - 1 : -1]]
        waited = console.duration(time.monotonic() - self._since)
        where = f"after step {self._step}; it is in {', from '.join(places)}"
        return f"{self._place}nothing has happened for {waited}, {where}"


def _short(path: str) -> str:
    return "/".join(Path(path).parts[-2:])


@contextmanager
def watchdog(ranks: Ranks) -> Iterator[Watchdog]:
    """Watch the calling thread in the block. A rank that reports nothing else reports hangs, too."""
    dog = Watchdog(ranks)
    thread = threading.Thread(target=dog.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield dog
    finally:
        dog.end()
        thread.join()
