"""SIGINT and SIGTERM while a run trains: the first is heeded where the run can be saved, a later one at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Seconds. A scheduler signals torchrun and its processes, and torchrun signals the processes again: that is one interrupt.
REPEAT_WINDOW = 5.0


@contextmanager
def deferred_interrupts() -> Iterator[list[int]]:
    """While the block runs, the first is only noted in this list; `SAME` seconds later they act as before the block."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python tells no other thread of signals
        yield noted
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    first = [0.0]

    def note(number: int, _: Any) -> None:
        if not noted:
            noted.append(number)
            first[0] = time.monotonic()
        elif time.monotonic() - first[0] >= REPEAT_WINDOW:
            restore()
            signal.raise_signal(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        restore()
