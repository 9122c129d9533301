"""bertie pretrain"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from bertie import config, console
from bertie.commands.common import Flat, Output, OutputFlags
from bertie.pretraining.dry_run import dry_run
from bertie.pretraining.pretrain import pretrain
from bertie.pretraining.recipe import PretrainConfig


@dataclass(frozen=True)
class Args:
    """Pre-train a BERT on token shards. The same command again resumes; a finished run is left alone."""

    config: Positional[str]
    """A TOML file, or a shipped one: tiny, mini, small, medium, base, large, or the paper's recipe, mini-paper …"""
    data: Path
    """Token shards (bertie prepare)."""
    out: Path
    """Run folder."""
    recipe: Annotated[PretrainConfig, Flat]
    dry_run: bool = False
    """Say what would be trained and what it takes, try three steps, and write nothing."""
    threads: int = 0
    """Processor threads; 0: those the run was started with, or all this process may use."""
    output: OutputFlags = Output()


def defaults(name: str) -> Args:
    """The flags as the configuration `name` sets them."""
    recipe = config.load(PretrainConfig, name, "pretrain")
    return Args(tyro.MISSING, tyro.MISSING, tyro.MISSING, recipe)


def run(args: Args) -> dict[str, Any]:
    if args.dry_run:
        return dry_run(args.recipe, args.data, args.out, threads=args.threads)
    result = pretrain(args.recipe, args.data, args.out, threads=args.threads)
    if not result:  # another rank speaks for all
        return result
    last = result["eval"]
    measures = [f"{name} {last[name]:.4f}" for name in last if name.endswith(("_loss", "_accuracy"))]
    console.info(f"{args.out}: held-out " + ", ".join(measures))
    return result
