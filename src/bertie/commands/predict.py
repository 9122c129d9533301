"""bertie predict"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie.commands.common import ColumnFlags, Output, OutputFlags
from bertie.errors import UsageError
from bertie.predict.predictor import load
from bertie.tasks.examples import Columns, stream_examples


@dataclass(frozen=True)
class Args:
    """Predict with a fine-tuned run: one JSON object a line on stdout, in input order."""

    run: Positional[str]
    """A fine-tuned run."""
    text: Positional[list[str]] = field(default_factory=list)
    """Texts to predict for."""
    input: Path | None = None
    """A file of any size: .tsv, .csv or .jsonl. For pairs of texts, with both in columns."""
    columns: ColumnFlags = Columns()
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    if bool(args.text) == bool(args.input):
        raise UsageError("give either texts or --input FILE")
    if args.text and args.columns != Columns():
        raise UsageError("--task.text, --task.text-pair and --task.label name columns of an --input FILE")
    if sys.stdout is None:
        raise UsageError("stdout is closed, and predictions go there")
    model = load(args.run)
    columns = args.columns if args.columns != Columns() or not model.task else model.task.columns
    inputs = stream_examples(args.input, columns) if args.input else args.text
    count = 0
    for prediction in model.predict_stream(inputs):
        print(json.dumps(asdict(prediction), ensure_ascii=False))
        count += 1
    return {"examples": count}
