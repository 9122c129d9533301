"""bertie finetune"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from bertie import config, console
from bertie.commands.common import Flat, Output, OutputFlags
from bertie.finetuning.finetune import finetune
from bertie.finetuning.recipe import FinetuneConfig


@dataclass(frozen=True)
class Args:
    """Fine-tune a checkpoint on labelled examples. The same command again resumes."""

    config: Positional[str]
    """A TOML file, or the kind of a task: classify, regress, choose, span, tag or embed. With --help, all flags of that kind."""
    train: Path
    """Training examples: .tsv (GLUE's layouts), .csv or .jsonl; SQuAD's .json; CoNLL's columns."""
    dev: Path
    """Examples to score on."""
    model: str
    """A run, a checkpoint folder or a hub id to start from."""
    out: Path
    """Run folder."""
    recipe: Annotated[FinetuneConfig, Flat]
    threads: int = 0
    """Processor threads; 0: those the run was started with, or all this process may use."""
    output: OutputFlags = Output()


def defaults(name: str) -> Args:
    """The flags as the configuration `name` sets them."""
    recipe = config.load(FinetuneConfig, name, "finetune")
    absent = tyro.MISSING
    return Args(config=absent, train=absent, dev=absent, model=absent, out=absent, recipe=recipe)


def run(args: Args) -> dict[str, Any]:
    started = time.monotonic()
    done = finetune(args.recipe, args.train, args.dev, args.model, args.out, threads=args.threads)
    chosen = (
        f" (best of {len(done.sweep.results)} runs, on the half of dev that did not choose it)" if done.sweep else ""
    )
    console.info(f"{args.out}: " + ", ".join(f"{name} {value:.4f}" for name, value in done.scores.items()) + chosen)
    result = {"run": str(args.out), "scores": done.scores, "seconds": round(time.monotonic() - started, 3)}
    if done.sweep is None:
        return {**result, "seeds": [args.recipe.seed]}
    seeds = list(dict.fromkeys(outcome.seed for outcome in done.sweep.results))
    return {**result, "seeds": seeds, "sweep": done.sweep.to_json()}
