"""bertie pretrain"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base import config, console
from bertie.commands.flags import Flat, JsonResult, Positional
from bertie.corpus.remote_shards import ShardCache
from bertie.pretraining.recipe import PretrainConfig

SHARED = True


@dataclass(frozen=True)
class Args:
    """Pre-train a BERT on token shards. Run the same command again to resume; a finished run is left unchanged."""

    config: Positional[str]
    """TOML file, or shipped recipe: modern-tiny, modern-mini, modern-small, modern-base or modern-large; BERT's tiny, mini,
    small, medium, base or large; with the paper's settings tiny-paper … large-paper."""
    data: tuple[str, ...]
    """Token shards: the output of `bertie prepare`, or its URL in an object store, such as s3://bucket/shards. Several folders
    are several data sets (--weights)."""
    out: Path
    """Output: the run folder."""
    recipe: Flat[PretrainConfig]
    dry_run: bool = False
    """Estimate time and memory from three training steps, without writing anything."""
    threads: int = 0
    """Number of CPU threads; 0: as before in a resumed run, otherwise all that this process may use."""
    shard_cache: Flat[ShardCache] = ShardCache()


def defaults(name: str) -> dict[str, Any]:
    """Return the defaults that a recipe determines."""
    return {"recipe": config.load(PretrainConfig, name, "pretrain")}


def run(args: Args) -> JsonResult:
    from bertie.base import runtime
    from bertie.pretraining.dry_run import dry_run  # here, so that --help is quick
    from bertie.pretraining.pretrain import pretrain_since
    from bertie.pretraining.start_up import StartUp

    if args.dry_run:
        return dry_run(args.recipe, args.data, args.out, threads=args.threads, cache=args.shard_cache)
    start_up = StartUp(runtime.process_start())
    result = pretrain_since(start_up, args.recipe, args.data, args.out, args.threads, args.shard_cache)
    if not result:  # only the first rank reports
        return result
    last = result["eval"]
    measures = {name: last[name] for name in last if name.endswith(("_loss", "_accuracy"))}
    console.info(f"{args.out}: held-out {console.scores(measures)}")
    return result
