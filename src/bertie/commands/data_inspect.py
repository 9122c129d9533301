"""bertie data inspect"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie import console
from bertie.checkpoints.read import read_checkpoint
from bertie.commands.flags import Positional
from bertie.commands.score import defaults as defaults
from bertie.tasks import AnyTask
from bertie.tasks.inspect_data import inspect_data, lines_of


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


def run(args: Args) -> dict[str, Any]:
    tokenizer = read_checkpoint(args.model).tokenizer if args.model else None
    result = inspect_data(args.task, args.file, tokenizer=tokenizer)
    for line in lines_of(result):
        console.info(line)
    return {"file": str(args.file), "task": args.task.kind, **result}
