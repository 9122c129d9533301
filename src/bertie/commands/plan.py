"""bertie plan"""

from __future__ import annotations

from dataclasses import dataclass

from bertie.commands.common import selected
from bertie.commands.flags import Flat, JsonResult
from bertie.corpus.remote_shards import ShardCache
from bertie.pretraining.budget_plan import Device, plan


@dataclass(frozen=True)
class Args:
    """Find out which size to pre-train in a given time, and which loss to expect. Takes minutes, writes nothing."""

    data: tuple[str, ...]
    """Token shards: the output of `bertie prepare`, or its URL in an object store, such as s3://bucket/shards; or several."""
    budget: str
    """Time for the pre-training, such as "24h", "90m" or "30s"."""
    weights: tuple[float, ...] = ()
    """How often a row is of each of several data sets; by default each text has the same number of epochs."""
    device: Device = "auto"
    """auto: this machine, measured. Otherwise: a GPU elsewhere, calculated."""
    utilization: float = 0.0
    """Part of the peak rate of a GPU elsewhere that the training is assumed to reach, up to 1; 0: 0.3."""
    threads: int = 0
    """Number of CPU threads; 0: all that this process may use. For this machine only."""
    shard_cache: Flat[ShardCache] = ShardCache()


def run(args: Args) -> JsonResult:
    return plan(
        args.data, args.budget, **selected(args, "weights", "device", "utilization", "threads"), cache=args.shard_cache
    )
