"""Groups of flags that several verbs share, and what these flags mean."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.commands.flags import JsonResult
from bertie.corpus.executors import Executor, make_executor


@dataclass(frozen=True)
class ExecutorOptions:
    """Where bertie processes the text."""

    executor: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster with shared files (pip install '.[ray]')."""
    workers: int = 0
    """Number of processes; 0: one per processor. The result is the same with any number."""
    ray_address: str = "local"
    """Address of the head of the Ray cluster, or auto; local: start a cluster on this machine."""

    def build(self) -> Executor:
        return make_executor(self.executor, self.workers, self.ray_address)


def selected(args: Any, *names: str) -> dict[str, Any]:
    """Return arguments of a verb by name, for a function whose parameters have the same names."""
    return {name: getattr(args, name) for name in names}


def require_one_input(texts: list[str], path: Path | None) -> None:
    """Raise UsageError unless a verb got either texts or a file."""
    if bool(texts) == bool(path):
        raise UsageError("give either texts or --input FILE")


def require_stdout(what: str) -> IO[str]:
    """Return stdout. Raise UsageError if it is closed, before the work for what is written there begins."""
    if sys.stdout is None:
        raise UsageError(f"stdout, where {what} are written, is closed: redirect it to a file")
    return sys.stdout


def print_lines(
    results: Iterable[Any],
    to_json: Callable[[Any], Any],
    path: Path | None,
    unit: str,
    noun: str,
    file: IO[str] | None = None,
) -> JsonResult:
    """Print one JSON object for each result, in place of a `UserError` its message.

    Args:
        results: The results, in input order.
        to_json: Returns the JSON value of a result.
        path: The input file, for messages.
        unit: What there is one result for: "pairs".
        noun: What a result is: "similarity".
        file: Where to print; None: on stdout.

    Returns:
        The result for `--json`: the number of results, and of errors.

    Raises:
        UserError: There are no results, or only errors.
    """
    count = bad = 0
    for result in results:
        count += 1
        bad += isinstance(result, UserError)
        value = {"error": str(result)} if isinstance(result, UserError) else to_json(result)
        print(json.dumps(value, ensure_ascii=False), file=file)
    if not count:
        raise UserError(f"{path}: no {unit} in it")
    if bad == count:
        raise UserError(f'{path or "texts"}: none of {bad:,} {unit} has a {noun}: see the "error" of each')
    if bad:
        console.warn(f'{bad:,} of {count:,} {unit} have an "error" instead of a {noun}')
    return {unit: count, "errors": bad}


KeepAccents = Literal["strip", "keep"] | None
STRIP_ACCENTS: dict[KeepAccents, bool | None] = {"strip": True, "keep": False, None: None}  # as in NormalizerOptions
