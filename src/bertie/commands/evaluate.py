"""bertie evaluate"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.commands.model_options import ModelOptions
from bertie.predict.load import load, read_task
from bertie.predict.shared import shared
from bertie.tasks import AnyTask
from bertie.tasks.evaluation.folder import PAGE
from bertie.training.sharing import shared_work

SHARED = True


@dataclass(frozen=True)
class Args:
    """Score a fine-tuned model on labeled examples. With --out, also write predictions and a report of the errors."""

    run: Positional[str]
    """A fine-tuned run, or a fine-tuned model's folder or hub id."""
    data: Path
    """Labeled examples, in a file format that `bertie finetune` reads."""
    task: AnyTask
    out: Path | None = None
    """Output folder: predictions.jsonl, scores.json (also per class) and report.html (with charts)."""
    strict: bool = False
    """Fail at the first unreadable row, instead of skipping it."""
    how: Flat[ModelOptions] = ModelOptions()


def defaults(run: str) -> dict[str, Any]:
    """Return the defaults that a run determines: its task."""
    return {"task": read_task(run)}


def run(args: Args) -> JsonResult:
    with shared_work(args) as share:
        model = shared(load(args.run, task=args.task, **vars(args.how)), share)
        if not share.first:
            model.predict([])
            return {}
        result = model.evaluate(args.data, args.strict, args.out)
    console.result(console.scores(result["scores"]))
    if args.out:
        console.info(f"report: {args.out / PAGE}")
    return result
