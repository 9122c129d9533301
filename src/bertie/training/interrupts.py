"""SIGINT and SIGTERM while a run trains: the first is heeded where the run can be saved, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def noted_interrupts() -> Iterator[list[int]]:
    """While the block runs, the first is only noted in this list; from then on they act as before the block."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python tells no other thread of signals
        yield noted
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        noted.append(number)
        restore()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        restore()
