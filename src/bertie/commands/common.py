"""Flags that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from bertie.text.executors import Executor, make_executor
from bertie.text.readers import ReaderOptions


@dataclass(frozen=True)
class Output:
    json: bool = False
    """Print one JSON object, last, on stdout."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclass(frozen=True)
class ExecutorOptions:
    """Where the work is done."""

    executor: Literal["local", "ray"] = "local"
    """Processes of this machine, or a Ray cluster (pip install 'bertie[ray]') whose machines all see the files."""
    workers: int = 0
    """Processes; 0: one on each processor. The result is the same with any number."""
    ray_address: str = "local"
    """Of the cluster's head, or auto; local starts one on this machine."""

    def build(self) -> Executor:
        return make_executor(self.executor, self.workers, self.ray_address)


Flat = arg(name="")  # a group of flags without a prefix of its own
OutputFlags = Annotated[Output, Flat]
ReaderFlags = Annotated[ReaderOptions, Flat]
ExecutorFlags = Annotated[ExecutorOptions, Flat]
