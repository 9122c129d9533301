"""bertie glove"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertie.commands.flags import Flat, JsonResult
from bertie.corpus.remote_shards import ShardCache
from bertie.pretraining.glove import GloveConfig, glove


@dataclass(frozen=True)
class Args:
    """Train static GloVe vectors on token shards. Fine-tune with them, or compute vectors, as with any model."""

    data: str
    """Token shards: the output of `bertie prepare`, or its URL in an object store, such as s3://bucket/shards."""
    out: Path
    """Output: the model folder."""
    settings: Flat[GloveConfig] = GloveConfig()
    threads: int = 0
    """Number of CPU threads; 0: all that this process may use."""
    shard_cache: Flat[ShardCache] = ShardCache()


def run(args: Args) -> JsonResult:
    return glove(args.data, args.out, args.settings, threads=args.threads, cache=args.shard_cache)
