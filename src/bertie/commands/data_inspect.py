"""bertie data inspect"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie import config, console
from bertie.checkpoints.read import read_checkpoint
from bertie.commands import score
from bertie.commands.flags import Positional
from bertie.errors import UsageError
from bertie.tasks import AnyTask
from bertie.tasks.inspect_data import inspect_data, kinds_that_read, lines_of


@dataclass(frozen=True)
class Args:
    """Show what a task reads from a file: columns, labels, lengths, first examples, and what is skipped and why."""

    kind: Positional[str]
    """Kind of task, such as classify, tag or span. --task KIND also sets it."""
    file: Positional[Path]
    """Labeled examples, in a file format that `bertie finetune` reads. Its size does not matter."""
    task: AnyTask
    model: str = ""
    """Model whose tokens are counted, without special tokens: a run, a checkpoint folder or a hub id; by default none."""


def defaults(kind: str) -> dict[str, Any]:
    """Return the defaults that a kind of task determines. Raises UsageError for a file in its place: some kinds may fit."""
    if kind in config.kinds(AnyTask):
        return score.defaults(kind)
    if Path(kind).exists():
        fitting = kinds_that_read(Path(kind))
        found = f"its columns fit {' or '.join(fitting)}" if fitting else "its columns fit no task without flags"
        raise UsageError(f"{kind} stands where the kind of task belongs; {found}", "Say it first, or with --task KIND")
    kinds = ", ".join(config.kinds(AnyTask))
    raise UsageError(f"{kind!r} is no kind of task, which stands before the file, and no file: the kinds are {kinds}")


def run(args: Args) -> dict[str, Any]:
    tokenizer = read_checkpoint(args.model).tokenizer if args.model else None
    result = inspect_data(args.task, args.file, tokenizer=tokenizer)
    for line in lines_of(result):
        console.result(line)
    return {"file": str(args.file), "task": args.task.kind, **result}
