"""bertie data inspect"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import config, console, own_code
from bertie.base.errors import UsageError, UserError, did_you_mean
from bertie.checkpoints.read import read_checkpoint
from bertie.commands import score
from bertie.commands.flags import JsonResult, Positional
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
    if kind in config.kinds(AnyTask) or own_code.is_name(kind):
        return score.defaults(kind)
    if Path(kind).exists():
        fitting = kinds_that_read(Path(kind))
        problem = f"its columns fit {' or '.join(fitting) or 'no task without flags'}"
        use = "TASK" if fitting else "classify"  # whose message lists the columns
        raise UsageError(f"missing task before {kind}: {problem}", f"Use bertie data inspect {use} {kind}")
    kinds = config.kinds(AnyTask)
    guess = did_you_mean(kind, (*kinds, *Path(kind).parent.glob("*"))) or f"; tasks: {', '.join(kinds)}"
    raise UsageError(f"unknown task or file {kind!r}{guess}")


def run(args: Args) -> JsonResult:
    tokenizer = read_checkpoint(args.model).tokenizer if args.model else None
    result = inspect_data(args.task, args.file, tokenizer=tokenizer)
    for line in lines_of(result):
        console.result(line)
    every = {"file": str(args.file), "task": args.task.kind, **result}
    if "refused" in result:
        raise UserError(f"fine-tuning refuses this file: {result['refused']}", result=every)
    return every
