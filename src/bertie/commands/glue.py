"""bertie glue"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from bertie import config
from bertie.commands.common import Flat, Output, OutputFlags
from bertie.finetuning.glue import glue
from bertie.finetuning.recipe import FinetuneConfig


@dataclass(frozen=True)
class Args:
    """Fine-tune a checkpoint on the tasks of GLUE, score them, predict for the leaderboard. The same command again resumes."""

    folder: Positional[Path]
    """GLUE's files as they are: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, diagnostic; what is absent is skipped."""
    model: str
    """A run, a checkpoint folder or a hub id to start from."""
    out: Path
    """Folder of the runs, one a task, scores.json and submission.zip."""
    recipe: Annotated[FinetuneConfig, Flat]
    tasks: tuple[str, ...] = ()
    """Of cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte, wnli; left out: all. The diagnostic, AX, comes with mnli."""
    from_mnli: bool = False
    """Start RTE, MRPC and STS-B from the run of MNLI, which is trained first."""
    config: str = "classify"
    """A TOML file that extends classify: of all tasks."""
    threads: int = 0
    """Processor threads; 0: those a run was started with, or all this process may use."""
    output: OutputFlags = Output()


def defaults(name: str) -> Args:
    """The flags as the configuration `name` sets them."""
    recipe = config.load(FinetuneConfig, name, "finetune")
    absent = tyro.MISSING
    return Args(folder=absent, model=absent, out=absent, recipe=recipe)


def run(args: Args) -> dict[str, Any]:
    started = time.monotonic()
    result = glue(
        args.folder,
        args.model,
        args.out,
        args.recipe,
        tasks=args.tasks,
        from_mnli=args.from_mnli,
        threads=args.threads,
    )
    seeds = list(range(args.recipe.seed, args.recipe.seed + args.recipe.restarts))
    seconds = round(time.monotonic() - started, 3)
    return {"run": str(args.out), **result, "seeds": seeds, "seconds": seconds}
