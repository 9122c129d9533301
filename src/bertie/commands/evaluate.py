"""bertie evaluate"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import ColumnFlags, Output, OutputFlags
from bertie.predict.predictor import load
from bertie.tasks.examples import Columns


@dataclass(frozen=True)
class Args:
    """Score a fine-tuned run on labelled examples."""

    run: Positional[str]
    """A fine-tuned run."""
    data: Path
    """.tsv, .csv or .jsonl, with labels."""
    columns: ColumnFlags = Columns()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    result = load(args.run).evaluate(args.data, columns=args.columns if args.columns != Columns() else None)
    console.say(", ".join(f"{name} {value:.4f}" for name, value in result["scores"].items()))
    return result
