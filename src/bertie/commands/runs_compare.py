"""bertie runs compare"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from bertie import console
from bertie.commands.common import Output, OutputFlags
from bertie.training.compare import compare


@dataclass(frozen=True)
class Args:
    """Draw the curves of several runs beside each other, and say in which settings they differ."""

    runs: Positional[tuple[str, ...]]
    """Run folders, finished or not."""
    out: Path = Path("compare.html")
    """The page."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    result = compare(args.runs, args.out)
    for found in result["runs"]:
        scores = {name: value for name, value in (found["eval"] or {}).items() if value is not None}
        told = ", ".join(f"{name} {scores[name]:.4f}" for name in scores if name.endswith(("_loss", "_accuracy")))
        kept = f"of step {found['eval']['step']:,} " if scores and scores["step"] < found["step"] else ""
        console.info(
            f"{found['run']}: step {found['step']:,}, {found['tokens']:,} tokens, {kept}{told or 'not evaluated yet'}"
        )
    if result["differences"]:
        console.info(f"setting: {' | '.join(found['run'] for found in result['runs'])}")
    for key, values in result["differences"].items():
        console.info(f"{key}: {' | '.join(map(str, values))}")
    console.info(f"the curves are in {args.out}")
    return result
