"""bertie glue"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from bertie.commands.common import selected
from bertie.commands.finetune import defaults as defaults
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.finetuning.glue import glue
from bertie.finetuning.recipe import FinetuneConfig

# Fields that the help does not list: the verb refuses them with a message.
HIDDEN = {
    "FinetuneConfig.metric",
    *(f"Classify.{name}" for name in ("text", "text_pair", "label", "labels", "no_label", "paired")),
    *(f"Regress.{name}" for name in ("text", "text_pair", "label", "labels", "no_label", "paired")),
    *("Classify.class_weights", "Classify.join_labels"),
}


@dataclass(frozen=True)
class Args:
    """Fine-tune a BERT on the tasks of GLUE, score it, and write the leaderboard's files.

    Run the same command again to resume.
    """

    folder: Positional[Path]
    """GLUE's folder as downloaded, with the subfolders CoLA, SST-2 … and diagnostic. bertie skips missing ones."""
    model: str
    """Model to start from: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output folder: one run per task, scores.json and submission.zip."""
    recipe: Flat[FinetuneConfig]
    tasks: tuple[str, ...] = ()
    """Tasks to run: any of cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; by default all. mnli includes the
    diagnostic set."""
    from_mnli: bool = False
    """Train MNLI first, and start RTE, MRPC and STS-B from that run."""
    config: str = "classify"
    """TOML file that extends classify. It applies to all tasks."""
    threads: int = 0
    """Number of CPU threads; 0: as before in a resumed run, otherwise all that this process may use."""


def run(args: Args) -> JsonResult:
    started = time.monotonic()
    result = glue(args.folder, args.model, args.out, args.recipe, **selected(args, "tasks", "from_mnli", "threads"))
    seeds = list(range(args.recipe.seed, args.recipe.seed + args.recipe.restarts))
    seconds = round(time.monotonic() - started, 3)
    return {"run": str(args.out), **result, "seeds": seeds, "seconds": seconds}
