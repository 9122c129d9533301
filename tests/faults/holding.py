"""Points at which a process waits for a signal, so that no test has to send it in time. Runs in the process to disturb."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from bertie.base import console

_PIPE: list[int] = []  # its ends; Python writes to the second one when a signal comes


def listen() -> None:
    """Note signals from now on, so that any thread can wait for one. Only the main thread can call this."""
    if not _PIPE:
        _PIPE.extend(os.pipe())
        os.set_blocking(_PIPE[1], False)
        signal.set_wakeup_fd(_PIPE[1])
        signal.signal(signal.SIGUSR1, lambda *_: None)


def wait_for_signal(place: str | Path) -> None:
    """Write the file `place`, so that the test sees it, and wait for SIGINT, SIGTERM or SIGUSR1, which only ends the wait.

    `listen` comes before. A file that exists is from an earlier process that waited there: this one goes on.
    """
    if not Path(place).exists():
        Path(place).touch()
        os.read(_PIPE[0], 1)


def at_progress(place: str | Path, title: str, number: int) -> None:
    """Wait when the bar of that title advances for the `number`th time in this process."""
    listen()
    advance, passed = console.Progress.advance, count(1)

    def patched(bar: console.Progress, amount: float = 1, detail: str = "") -> None:
        advance(bar, amount, detail)
        here = threading.current_thread() is threading.main_thread()
        if here and amount and bar.title == title and next(passed) == number:
            wait_for_signal(place)

    console.Progress.advance = patched


def at_call(place: str | Path, module: Any, name: str) -> None:
    """Wait before the function of that name in the module does anything."""
    listen()
    act: Callable[..., Any] = getattr(module, name)

    def patched(*args: Any, **named: Any) -> Any:
        wait_for_signal(place)
        return act(*args, **named)

    setattr(module, name, patched)
