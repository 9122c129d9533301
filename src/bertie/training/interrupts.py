"""SIGINT and SIGTERM during training: the first one lets the run save a checkpoint, a later one acts at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Seconds. A scheduler signals torchrun and its processes, and torchrun signals the processes again. Signals within this
# time count as one interrupt.
REPEAT_WINDOW = 5.0


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """Defer the first SIGINT or SIGTERM in the `with` block.

    Yields:
        A list that receives the number of the first signal. The caller polls it. Further signals are ignored for
        REPEAT_WINDOW seconds; after that, the handlers from before the block act again. Outside the main thread the
        list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield received
        return

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    first_time = [0.0]

    def handle(number: int, _: Any) -> None:
        if not received:
            received.append(number)
            first_time[0] = time.monotonic()
        elif time.monotonic() - first_time[0] >= REPEAT_WINDOW:
            restore()
            signal.raise_signal(number)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        restore()
