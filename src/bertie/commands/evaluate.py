"""bertie evaluate"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags
from bertie.predict.predictor import load, read_task
from bertie.tasks import AnyTask, Classify
from bertie.tasks.evaluation.folder import PAGE


@dataclass(frozen=True)
class Args:
    """Score a fine-tuned run on labelled examples; with --out, also show what it gets wrong."""

    run: Positional[str]
    """A fine-tuned run."""
    data: Path
    """A file in one of the forms that it was trained on, with labels."""
    task: AnyTask
    out: Path | None = None
    """Folder to make: predictions.jsonl (of every example), scores.json (also by class) and report.html (with pictures)."""
    strict: bool = False
    """Refuse a file with rows that cannot be read, rather than skip and count those."""
    output: OutputFlags = Output()


def defaults(run: str) -> Args:
    """The flags as the run has them."""
    return Args(run=tyro.MISSING, data=tyro.MISSING, task=read_task(run) if run else Classify())


def run(args: Args) -> dict[str, Any]:
    result = load(args.run, task=args.task).evaluate(args.data, args.strict, args.out)
    console.info(", ".join(f"{name} {value:.4f}" for name, value in result["scores"].items()))
    if args.out:
        console.info(f"{args.out / PAGE} shows what is right and what is wrong")
    return result
