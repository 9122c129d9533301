"""Progress bars, information lines and warnings, on stderr, and results, on stdout."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from html import escape
from typing import IO, Any, TypeVar

from bertie.base.errors import visible

T = TypeVar("T")
_silent = ContextVar("silent", default=False)
_to_stdout = ContextVar("to_stdout", default=False)
_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Give a variable another value in the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def silenced() -> AbstractContextManager[bool]:
    """Suppress all output of this module in the block. For processes other than the one that reports."""
    return _set(_silent, True)


def info(text: str, warning: bool = False) -> None:
    """Print a line to stderr. If stderr is closed (a closed terminal, a dead `| tee`), the work continues.

    A notebook shows stderr in red, which suits only a warning: other lines go to its stdout.
    """
    if _silent.get():
        return
    with suppress(OSError):
        print(text, file=sys.stdout if _display() and not warning else sys.stderr or _devnull(), flush=True)


def _display() -> Callable[..., Any] | None:
    """Return IPython's `display` if this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython.display.display if ipython and hasattr(ipython.get_ipython(), "kernel") else None


def results_on_stdout() -> AbstractContextManager[bool]:
    """Print the results of the block to stdout. For a command: a function leaves stdout to the program that calls it."""
    return _set(_to_stdout, True)


def result(text: str) -> None:
    """Print a line of what a command was asked for: to stdout, or to stderr if the result on stdout is a JSON object."""
    if not _to_stdout.get():
        info(text)
    elif not _silent.get():
        print(text)


def _devnull() -> IO[str]:
    """Replace `sys.stderr`, which is None if the process was started without one."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - stays open until the process ends
    return sys.stderr


def warn(text: str, once: bool = False) -> None:
    """Print a warning to stderr, as one line. once: not again, if it was printed before."""
    text = visible(text)
    if (heard := _heard.get()) is not None:
        heard.append(text)
    else:
        (info_once if once else info)(f"warning: {text}", warning=True)


@contextmanager
def collected() -> Iterator[list[str]]:
    """Collect the warnings of the block in a list instead of printing them."""
    warnings: list[str] = []
    with _set(_heard, warnings):
        yield warnings


@lru_cache(maxsize=64)
def info_once(text: str, warning: bool = False) -> None:
    """Print a line as `info` does, unless it was printed before."""
    info(text, warning)


def plural(count: int, what: str) -> str:
    """Return a count with its noun: "1 epoch", "2 epochs"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def scores(values: Mapping[str, float]) -> str:
    """Return scores for people: "accuracy 0.9125, f1 0.8931"."""
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def percent(share: float) -> str:
    """Return a share as a percentage: 0.5 as "50.0 %", and 0.0001 as "< 0.1 %"."""
    return "< 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 999.5 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Return a duration in a unit that suits it: 9000 as "2.5 hours"."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.2g} s"


@dataclass
class Progress:
    """Progress of some work: a bar on a terminal or in a notebook, otherwise a plain line every 30 s."""

    title: str
    """Name of the work."""
    total: float
    """Amount of work in units. 0: unknown."""
    unit: str
    """Name of the unit."""
    bar: Any = None
    """The bar of rich. None without a terminal."""
    task: Any = None
    """The bar's task id."""
    cell: Any = None
    """The place of the bar in a notebook: a display handle of IPython."""
    done: float = 0
    """Units done so far."""
    before: float = 0
    """Units that were already done when this process started. They do not count in the rate."""
    detail: str = ""
    """Text behind the bar."""
    started: float = 0.0
    """Start time, in seconds of `time.monotonic`."""
    printed: float = 0.0
    """Time of the last plain line, in seconds of `time.monotonic`."""

    def advance(self, amount: float = 1, detail: str = "") -> None:
        """Add `amount` units and update the display. It is cheap enough to call in an inner loop."""
        self.done += amount
        self.detail = detail or self.detail
        if self.bar is not None:
            self.bar.update(
                self.task,
                completed=self.done,
                left=f"{timedelta(seconds=round(self.left))} left" if self.total and self.rate else "",
                detail=f"{self.pace.removeprefix(', ')}  {self.detail}".strip(),
            )
        elif time.monotonic() - self.printed > (0.3 if self.cell else 30):
            self.printed = time.monotonic()
            self.cell.update(self) if self.cell else info(self.line())

    @property
    def rate(self) -> float:
        """Units per second, in this process."""
        return (self.done - self.before) / max(time.monotonic() - self.started, 1e-9)

    def line(self) -> str:
        """Return the progress as one plain line."""
        left = f", {self.left:.0f} s left" if self.done < self.total and self.rate else ""
        share = f" of {_amount(self.total)}" if self.total else ""
        return f"{self.title}: {_amount(self.done)}{share} {self.unit}{self.pace}{left}  {self.detail}".rstrip()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return what a notebook shows, as text and as HTML."""
        bar = f'<progress max="1" value="{self.done / self.total:.3f}"></progress> ' if self.total else ""
        return {"text/plain": self.line(), "text/html": f"<pre>{bar}{escape(self.line())}</pre>"}

    @property
    def left(self) -> float:
        """Seconds until all units are done, if the total is known."""
        rate = 1.0 if self.unit == "s" else self.rate  # the seconds of a budget pass by themselves
        return (self.total - self.done) / max(rate, 1e-9)

    @property
    def pace(self) -> str:
        """The rate as text; nothing where the units are seconds of a budget."""
        return "" if self.unit == "s" else f", {_amount(self.rate)}/s"


@contextmanager
def status(bar: Progress, detail: Callable[[], str]) -> Iterator[None]:
    """Show `detail()` once a second while the block waits for work that does not call `bar.advance`."""
    ended = threading.Event()

    def update() -> None:
        while not ended.wait(1):
            bar.advance(0, detail())

    updater = threading.Thread(target=update, name="status", daemon=True)
    updater.start()
    try:
        yield
    finally:
        ended.set()
        updater.join()


@contextmanager
def progress(title: str, total: float, unit: str, done: float = 0, passing: bool = False) -> Iterator[Progress]:
    """Show the progress of the work in the block.

    Args:
        title: Name of the work.
        total: Amount of work in units. 0: unknown.
        unit: Name of the unit.
        done: Units that are already done.
        passing: If true, the bar disappears at the end.

    Yields:
        The progress, to be advanced by the caller.
    """
    now = time.monotonic()
    shown = Progress(title, total, unit, started=now, printed=now, done=done, before=done)
    if display := None if _silent.get() else _display():
        shown.cell = display(shown, display_id=True)
    if shown.cell or _silent.get() or not (sys.stderr and sys.stderr.isatty()):
        yield shown
        if shown.cell:
            shown.cell.update({} if passing else shown, raw=passing)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column
    from rich.text import Text

    columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn(unit))

    class Detail(TextColumn):
        """In a narrow terminal, only this column shrinks (`no_wrap=False`), and its text is cut instead of wrapped."""

        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    detail = Detail("{task.fields[detail]}", table_column=Column(no_wrap=False))
    left = TextColumn("{task.fields[left]}")
    with RichProgress(*columns, left, detail, console=Console(stderr=True), transient=passing) as bar:
        shown.bar, shown.task = bar, bar.add_task(title, total=total or None, completed=int(done), left="", detail="")
        yield shown
