"""bertie score"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import config, console
from bertie.commands.flags import JsonResult, Positional
from bertie.tasks import AnyTask
from bertie.tasks.scoring import score


@dataclass(frozen=True)
class Args:
    """Score a file of predictions on labeled examples, without a model."""

    kind: Positional[str]
    """Kind of task, such as classify, tag or span. --task KIND also sets it."""
    data: Path
    """Labeled examples, in a file format that `bertie finetune` reads."""
    predictions: Path
    """Predictions: output of `bertie predict` (.jsonl), or a GLUE submission with index and prediction (.tsv). For
    span, also SQuAD's {id: answer} (.json); for tag, also CoNLL columns, the last with the predicted tag."""
    task: AnyTask
    null_odds: Path | None = None
    """For SQuAD 2.0: JSON {id: score of no answer}, or the .jsonl of `bertie predict` (its null_score). Adds the best
    thresholds and their scores."""
    null_threshold: float = 1.0
    """Score of no answer above which the prediction counts as no answer (na-prob-thresh of the official script)."""
    strict: bool = False
    """Fail at the first unreadable row of the data, at a question of SQuAD 1.1 without a prediction, and at a prediction for a
    question that the data do not have. By default the row is skipped, the question counts as 0, and the prediction counts
    for nothing."""


def defaults(kind: str) -> dict[str, Any]:
    """Return the defaults that a kind of task determines."""
    return {"task": config.build(AnyTask, {"kind": kind}, "task")}


def run(args: Args) -> JsonResult:
    odds, threshold = args.null_odds, args.null_threshold
    result = score(args.task, args.data, args.predictions, null_odds=odds, null_threshold=threshold, strict=args.strict)
    console.result(console.scores(result["scores"]))
    return result
