"""What people see while they wait. All of it goes to stderr: stdout belongs to results."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any

_silent = ContextVar("silent", default=False)


@contextmanager
def silenced() -> Iterator[None]:
    """Say nothing, show no bars: another process of the same work does."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def info(text: str) -> None:
    """A line for people. Where nobody listens any more (a closed terminal, a dead `| tee`), the work goes on."""
    if _silent.get():
        return
    with suppress(OSError):
        print(text, file=sys.stderr or _nowhere(), flush=True)


def _nowhere() -> IO[str]:
    """stderr is None where a process was started without one."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    return sys.stderr


def warn(text: str) -> None:
    info(f"warning: {text}")


def plural(count: int, what: str) -> str:
    """1 epoch, 2 epochs."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def percent(share: float) -> str:
    """0.5 as 50.0 %."""
    return f"{100 * share:.1f} %"


@dataclass
class Progress:
    """A bar on a terminal; elsewhere a plain line every 30 s. `advance` may be called as often as you like."""

    title: str
    total: float
    unit: str
    bar: Any = None
    task: Any = None
    done: float = 0
    before: float = 0  # what was done when this process began: it took none of its time
    detail: str = ""
    started: float = 0.0
    printed: float = 0.0

    def advance(self, amount: float = 1, detail: str = "") -> None:
        self.done += amount
        self.detail = detail or self.detail
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, detail=f"{self.rate:.3g}/s  {self.detail}")
        elif time.monotonic() - self.printed > 30:
            self.printed = time.monotonic()
            info(self.line())

    @property
    def rate(self) -> float:
        """Units a second, in this process."""
        return (self.done - self.before) / max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        rate = self.rate
        left = f", {(self.total - self.done) / rate:.0f} s left" if self.total and rate else ""
        share = f" of {self.total:g}" if self.total else ""
        return f"{self.title}: {self.done:g}{share} {self.unit}, {rate:.3g}/s{left}  {self.detail}".rstrip()


@contextmanager
def status(bar: Progress, detail: Callable[[], str]) -> Iterator[None]:
    """Show `detail` once a second while the block waits for something that does not call `advance`."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(1):
            bar.advance(0, detail())

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextmanager
def progress(title: str, total: float, unit: str, done: float = 0, passing: bool = False) -> Iterator[Progress]:
    """Show work on `total` units (0: unknown), of which `done` are done already. passing: leave no bar behind."""
    now = time.monotonic()
    if _silent.get() or not (sys.stderr and sys.stderr.isatty()):
        yield Progress(title, total, unit, started=now, printed=now, done=done, before=done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn(unit))
    # In a narrow terminal the detail takes more lines, and nothing else gives way.
    detail = TextColumn("{task.fields[detail]}", table_column=Column(no_wrap=False))
    times = (TimeRemainingColumn(), TextColumn("left"), detail)
    with RichProgress(*columns, *times, console=Console(stderr=True), transient=passing) as bar:
        task = bar.add_task(title, total=total or None, completed=int(done), detail="")
        yield Progress(title, total, unit, bar, task, started=now, printed=now, done=done, before=done)
