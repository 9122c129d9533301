"""Points at which a process waits for a signal, so that no test has to send it in time. Runs in the process to disturb."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from bertie import console


def wait_for_signal(place: str | Path) -> None:
    """Write the file `place`, so that the test sees it, and wait for SIGINT, SIGTERM or SIGUSR1, which only ends the wait.

    A file that exists is from an earlier process that waited there: this one goes on.
    """
    if Path(place).exists():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer), signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        Path(place).touch()
        os.read(reader, 1)  # a signal that comes before this line is in the pipe already
    finally:
        signal.set_wakeup_fd(before[0])
        signal.signal(signal.SIGUSR1, before[1])
        os.close(reader)
        os.close(writer)


def at_progress(place: str | Path, title: str, number: int) -> None:
    """Wait when the bar of that title advances for the `number`th time in this process."""
    advance, passed = console.Progress.advance, count(1)

    def patched(bar: console.Progress, amount: float = 1, detail: str = "") -> None:
        advance(bar, amount, detail)
        here = threading.current_thread() is threading.main_thread()
        if here and amount and bar.title == title and next(passed) == number:
            wait_for_signal(place)

    console.Progress.advance = patched


def at_call(place: str | Path, module: Any, name: str) -> None:
    """Wait before the function of that name in the module does anything."""
    act: Callable[..., Any] = getattr(module, name)

    def patched(*args: Any, **named: Any) -> Any:
        wait_for_signal(place)
        return act(*args, **named)

    setattr(module, name, patched)
