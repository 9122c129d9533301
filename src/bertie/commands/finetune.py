"""bertie finetune"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UserError
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.finetuning.finetune import finetune_on_ranks
from bertie.finetuning.recipe import FinetuneConfig, read_recipe
from bertie.tasks.evaluation.folder import PAGE
from bertie.training.distributed import process_group

SHARED = True


@dataclass(frozen=True)
class Args:
    """Fine-tune a BERT on labeled examples. Run the same command again to resume."""

    config: Positional[str]
    """TOML file, or kind of task, such as classify, tag or span; for a task of your own, the name of its class:
    my_package:MyTask. --task KIND also sets it."""
    train: tuple[Path, ...]
    """Training examples: .tsv (also in GLUE's formats), .csv, .jsonl or .parquet; .json in SQuAD's format; CoNLL
    columns. .tsv, .csv and .jsonl may be compressed. Of several files, each is a data set (--weights)."""
    model: str
    """Model to start from: a run, a checkpoint folder or a hub id."""
    out: Path
    """Output: the run folder."""
    recipe: Flat[FinetuneConfig]
    dev: Path | None = None
    """Dev set: labeled examples to score on, in the same formats; by default a part of the training examples (--dev-share)."""
    test: Path | None = None
    """Test set: labeled examples that are scored once, after training."""
    threads: int = 0
    """Number of CPU threads; 0: as before in a resumed run, otherwise all that this process may use."""


def defaults(name: str) -> dict[str, Any]:
    """Return the defaults that a recipe determines."""
    return {"recipe": read_recipe(name)}


def run(args: Args) -> JsonResult:
    started = time.monotonic()
    with process_group() as ranks:
        data = (args.train, args.model, args.out, args.dev, args.test)
        outcome = finetune_on_ranks(ranks, args.recipe, *data, threads=args.threads)
    if outcome is None:  # only the first rank reports
        return {}
    done, seconds = outcome.sweep, round(time.monotonic() - started, 3)
    best = f" (best of {len(done.results)} runs, scored on the report half of the dev set)" if done else ""
    console.info(f"{args.out}: {console.scores(outcome.scores)}{best}")
    result: JsonResult = {"run": str(args.out), "scores": outcome.scores, "seconds": seconds}
    if outcome.test_scores is not None:
        console.info(f"{args.out}, test: {console.scores(outcome.test_scores)}")
        result["test_scores"] = outcome.test_scores
    seeds = dict.fromkeys(run.seed for run in done.results) if done else [args.recipe.seed]
    result |= {"seeds": list(seeds), **({"sweep": done.to_json()} if done else {})}
    if outcome.failed:
        raise UserError(f"the run failed; its report says more: {args.out / PAGE}", result=result)
    return result
