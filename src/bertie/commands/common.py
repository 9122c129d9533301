"""Flags that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from bertie.text.executors import Executor, executor
from bertie.text.readers import Reading


@dataclass(frozen=True)
class Output:
    json: bool = False
    """Print one JSON object, last, on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class Work:
    """Where the work is done."""

    executor: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster (pip install 'bertie[ray]') whose machines all see the files."""
    workers: int = 0
    """Processes; 0: one on each processor. The result is the same with any number."""
    ray_address: str = "local"
    """Of the cluster's head, or auto; local starts one on this machine."""

    def build(self) -> Executor:
        return executor(self.executor, self.workers, self.ray_address)


Flat = arg(name="")  # a group of flags without a prefix of its own
OutputFlags = Annotated[Output, Flat]
ReadingFlags = Annotated[Reading, Flat]
WorkFlags = Annotated[Work, Flat]
