"""bertie score"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from tyro.conf import Positional

from bertie import config, console
from bertie.commands.common import Output, OutputFlags
from bertie.tasks import AnyTask
from bertie.tasks.scoring import score


@dataclass(frozen=True)
class Args:
    """Score a file of predictions on labelled examples, without a model."""

    kind: Positional[str]
    """The kind of the task, as --task KIND too: classify, regress, choose, span, tag or embed."""
    data: Path
    """Labelled examples, in one of the forms that fine-tuning reads."""
    predictions: Path
    """What bertie predict wrote (.jsonl); GLUE's index and prediction (.tsv); for span SQuAD's {id: answer} (.json); for tag
    columns, the predicted tag in the last."""
    task: AnyTask
    null_odds: Path | None = None
    """For SQuAD 2.0, JSON of {id: number}, how likely there is no answer, or predict's .jsonl (its null_score): adds the best
    thresholds and their scores."""
    null_threshold: float = 1.0
    """Where the odds are above it, there is no answer, whatever was predicted (the official script's na-prob-thresh)."""
    strict: bool = False
    """Refuse data with rows that cannot be read, rather than skip and count those, and questions of SQuAD 1.1 without a
    prediction, rather than count them 0."""
    output: OutputFlags = Output()


def defaults(kind: str) -> Args:
    """The flags of a kind of task."""
    absent, task = tyro.MISSING, config.build(AnyTask, {"kind": kind}, "task")
    return Args(kind=absent, data=absent, predictions=absent, task=task)


def run(args: Args) -> dict[str, Any]:
    odds, threshold = args.null_odds, args.null_threshold
    result = score(args.task, args.data, args.predictions, null_odds=odds, null_threshold=threshold, strict=args.strict)
    console.info(", ".join(f"{name} {value:.4f}" for name, value in result["scores"].items()))
    return result
