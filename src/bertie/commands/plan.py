"""bertie plan"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.commands.common import Output, OutputFlags
from bertie.pretraining.budget_plan import Device, plan


@dataclass(frozen=True)
class Args:
    """Find out which size to pre-train in a given time, and which loss to expect. Times a few steps, writes nothing."""

    data: Path
    """Token shards: the output of `bertie prepare`."""
    hours: float
    """Duration of the pre-training."""
    device: Device = "auto"
    """auto: what bertie would train on here. cpu or cuda: of this machine. Otherwise, a GPU elsewhere."""
    utilization: float = 0.3
    """Part of the peak rate of a GPU elsewhere that the training is assumed to reach."""
    threads: int = 0
    """Number of CPU threads; 0: all that this process may use."""
    output: OutputFlags = Output()


def run(args: Args) -> dict[str, Any]:
    return plan(args.data, args.hours, device=args.device, utilization=args.utilization, threads=args.threads)
