"""bertie finetune"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.finetuning.finetune import finetune_on_ranks
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.training.distributed import process_group

SHARED = True


@dataclass(frozen=True)
class Args:
    """Fine-tune a BERT on labeled examples. Run the same command again to resume."""

    config: Positional[str]
    """TOML file, or kind of task, such as classify, tag or span; for a task of your own, the name of its class:
    my_package:MyTask. --task KIND also sets it."""
    train: Path
    """Training examples: .tsv (also in GLUE's formats), .csv, .jsonl or .parquet; .json in SQuAD's format; CoNLL
    columns. .tsv, .csv and .jsonl may be compressed."""
    dev: Path
    """Dev set: labeled examples to score on, in the same formats."""
    model: str
    """Model to start from: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output: the run folder."""
    recipe: Flat[FinetuneConfig]
    threads: int = 0
    """Number of CPU threads; 0: as before in a resumed run, otherwise all that this process may use."""


def defaults(name: str) -> dict[str, Any]:
    """Return the defaults that a recipe determines."""
    return {"recipe": read_recipe(name)}


def run(args: Args) -> JsonResult:
    started = time.monotonic()
    with process_group() as ranks:
        outcome = finetune_on_ranks(ranks, args.recipe, args.train, args.dev, args.model, args.out, args.threads)
    if outcome is None:  # only the first rank reports
        return {}
    scores = console.scores(outcome.scores)
    result = {"run": str(args.out), "scores": outcome.scores, "seconds": round(time.monotonic() - started, 3)}
    if outcome.sweep is None:
        console.info(f"{args.out}: {scores}")
        return {**result, "seeds": [args.recipe.seed]}
    runs = outcome.sweep.results
    console.info(f"{args.out}: {scores} (best of {len(runs)} runs, scored on the report half of the dev set)")
    return {**result, "seeds": list(dict.fromkeys(run.seed for run in runs)), "sweep": outcome.sweep.to_json()}
