"""bertie lab"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.base import console
from bertie.base.errors import UserError
from bertie.commands.common import selected
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.lab.lab import run_lab
from bertie.lab.launchers import Work


@dataclass(frozen=True)
class Args:
    """Compare variants of pre-training: train, fine-tune and score all of them, several seeds each.

    Run the same command again to resume, or, after you change the file, to compute only the new steps.
    """

    config: Positional[str]
    """Lab file (TOML), or a shipped one: see the documentation."""
    out: Path
    """Output: the folder of the lab, with report.html, results.md and results.json."""
    data: Path = Path()
    """Folder to which the paths in the lab file are relative."""
    steps: Path | None = None
    """Folder of the steps: vocabularies, shards, models, scores. Labs with the same folder share what they have in common.
    By default OUT/steps."""
    seeds: tuple[int, ...] = ()
    """Random seeds, in place of the seeds in the lab file."""
    dry_run: bool = False
    """Prepare the text, time a few training steps, and print the cells and the estimated time. Nothing is trained."""
    work: Flat[Work] = Work()


def run(args: Args) -> JsonResult:
    options = selected(args, "seeds", "work")
    result = run_lab(args.config, args.data, args.out, **options, steps=args.steps or "", dry=args.dry_run)
    if failed := result.get("failed"):
        remedy = "the same command repeats them. If a file of a step is damaged, remove the folder of that step first"
        raise UserError(f"{console.plural(failed, 'step')} failed; {remedy}", result=result)
    return result
