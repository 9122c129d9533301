"""Errors that a user can correct. The command line prints each as a short message, without a traceback.

Any other exception is a bug in bertie and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MAX_INT32 = 2**31 - 1
"""Default upper limit of a setting."""


LONGEST_MESSAGE = 4000
"""Characters of a message; the middle of a longer one is left out. Names in a file have any length."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def visible(message: str) -> str:
    """Return a message in one line: what does not print, such as a line break in a name, as an escape sequence; cut."""
    if len(message) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        message = f"{message[:half]} … {message[-half:]}"
    if message.isprintable():
        return message
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)


SECRETS = (
    (r"://[^/@\s:]*:[^/\s]*@", "://…@"),  # up to the last @: a password may have one
    (r"\b((?:https?|ftp)://)[^/\s]+@", r"\1…@"),  # in other URLs, a name alone before an @ is that of a container
    (r"\b(https?://[^\s?]*\?)[^\s'\")]*[^\s'\"):;,.]", r"\1…"),
)


def redacted(text: str) -> str:
    """Return a text without the user names, passwords and queries of its URLs: they are secrets, or may hold one.

    "https://me:secret@host/a?key=b" → "https://…@host/a?…"
    """
    for secret, shown in SECRETS:
        text = re.sub(secret, shown, text)
    return text


class UserError(Exception):
    """The data or the machine prevents the work. The message says what is wrong, where, and what to do. Exit code 1.

    It has no passwords: see `redacted`.
    """

    exit_code = 1

    def __init__(self, problem: str = "", remedy: str = "", result: dict[str, Any] | None = None):
        """Create an error.

        Args:
            problem: What is wrong, and where. What to do too, if everybody can do it.
            remedy: What to do on the command line, as a sentence of its own. A server leaves it out.
            result: What was done nevertheless, for `--json`.
        """
        problem, remedy = visible(redacted(problem)), visible(redacted(remedy))
        super().__init__(f"{problem}. {remedy}" if remedy else problem)
        self.problem, self.remedy, self.result = problem, remedy, result or {}


class MachineError(UserError):
    """The machine failed, not the data: a full disk, a lost worker. The same command may continue the work."""


class DivergedError(UserError):
    """The loss of a training run stays non-finite."""


class NonFiniteError(UserError):
    """The output of a model is NaN or infinite."""


class UsageError(UserError):
    """The command line, a flag or a configuration key is wrong, and no work was started. Exit code 2."""

    exit_code = 2


class LostRankError(MachineError):
    """Another rank of torchrun has ended, or cannot be reached. All ranks notice it, and each has other details."""


class SaidElsewhereError(UserError):
    """Another rank of torchrun has failed and says why: this process only ends, with an exit code."""

    def __init__(self, exit_code: int):
        super().__init__("another rank has failed: see its message")
        self.exit_code = exit_code


def require_range(
    where: str, config: object, *names: str, low: float, high: float = MAX_INT32, above: bool = False, multiple: int = 0
) -> None:
    """Check that settings lie in a range.

    Args:
        where: Dotted key of the configuration, for the message; "" for the top level.
        config: Object that has the settings as attributes.
        *names: Attributes to check.
        low: Smallest allowed value.
        high: Largest allowed value.
        above: If true, `low` itself is not allowed.
        multiple: Settings must be multiples of this number. 0: of none.

    Raises:
        UsageError: A setting is NaN or out of range. The message names the first one.
    """
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high or (above and value == low) or (multiple and value % multiple):
            least = "a number, " * (value != value) + ("more than" if above else "at least")
            most = "" if high == MAX_INT32 and not value > MAX_INT32 else f", at most {high:,}"
            most += f", a multiple of {multiple}" * (multiple > 0)
            raise UsageError(f"{f'{where}.{name}'.lstrip('.')} is {value}: give {least} {low:g}{most}")


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Begin the message of a UserError with the place that it is about, followed by a colon."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{where}: {error}") from error


def install(extra: str) -> str:
    """Return the command that installs an optional extra, for messages."""
    return f"pip install '.[{extra}]' in a checkout of bertie"


def nearest(word: str, choices: Iterable[object]) -> str:
    """Return the choice that a misspelled word most likely means, whatever its case; "" if none is near."""
    names = {str(choice).lower(): str(choice) for choice in choices}
    close = difflib.get_close_matches(word.lower(), names, n=1)
    return names[close[0]] if close else ""


def did_you_mean(word: str, choices: Iterable[object]) -> str:
    """Return the end of a message about a misspelled word: ": did you mean 'mlm'?"; "" if no choice is near."""
    near = nearest(word, choices)
    return f": did you mean {near!r}?" if near else ""


def nearest_path(path: Path, remedy: str = "") -> str:
    """Return the end of a message: of a missing file the most similar name beside it, or else a remedy."""
    near = "" if path.exists() else nearest(path.name, (other.name for other in path.parent.glob("*")))
    return f": did you mean {path.parent / near}?" if near else remedy and f": {remedy}"


SHOWN = 3
"""Items of a long list that a message shows."""


def shorten(text: str, limit: int = 40) -> str:
    """Truncate a text for a message, to `limit` characters."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def join_names(names: Iterable[str]) -> str:
    """Join the first 30 names of columns or classes for a message."""
    return ", ".join(shorten(name) for name in islice(names, 30))


def first_few(items: Iterable[str], count: int, separator: str = "; ") -> str:
    """Join the first SHOWN items for a message, and say how many of `count` items follow."""
    more = f" … and {count - SHOWN:,} more" if count > SHOWN else ""
    return separator.join(islice(items, SHOWN)) + more


def raise_error(item: T | UserError) -> T:
    """Return an item, or raise the error that is in its place."""
    if isinstance(item, UserError):
        raise item
    return item
