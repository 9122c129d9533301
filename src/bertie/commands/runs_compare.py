"""bertie runs compare"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.commands.flags import JsonResult, Positional
from bertie.training.compare import compare


@dataclass(frozen=True)
class Args:
    """Compare the learning curves of runs on one page, and list the settings that differ."""

    runs: Positional[tuple[str, ...]]
    """Run folders, finished or not."""
    out: Path = Path("compare.html")
    """Output file, an HTML page."""


def run(args: Args) -> JsonResult:
    result = compare(args.runs, args.out)
    for entry in result["runs"]:
        scores = {name: value for name, value in (entry["eval"] or {}).items() if value is not None}
        measures = console.scores({name: scores[name] for name in scores if name.endswith(("_loss", "_accuracy"))})
        at_step = f"at step {entry['eval']['step']:,}: " if scores and scores["step"] < entry["step"] else ""
        progress = f"step {entry['step']:,}, {entry['tokens']:,} tokens"
        console.result(f"{entry['run']}: {progress}, {at_step}{measures or 'not evaluated yet'}")
    if result["differences"]:
        console.result(f"setting: {' | '.join(entry['run'] for entry in result['runs'])}")
    for key, values in result["differences"].items():
        console.result(f"{key}: {' | '.join(map(str, values))}")
    console.info(f"learning curves: {args.out}")
    return result
