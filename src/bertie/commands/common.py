"""Flags that several verbs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from bertie.text.executors import Executor, make_executor
from bertie.text.readers import ReaderOptions


@dataclass(frozen=True)
class Output:
    """Flags that every verb has."""

    json: bool = False
    """Print the result as one JSON object on the last line of stdout."""
    debug: bool = False
    """Show the traceback if the command fails."""


@dataclass(frozen=True)
class ExecutorOptions:
    """Where bertie processes the text."""

    executor: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster with shared files (pip install 'bertie[ray]')."""
    workers: int = 0
    """Number of processes; 0: one per processor. The result is the same with any number."""
    ray_address: str = "local"
    """Address of the head of the Ray cluster, or auto; local: start a cluster on this machine."""

    def build(self) -> Executor:
        return make_executor(self.executor, self.workers, self.ray_address)


Flat = arg(name="")  # a group of flags without a prefix
OutputFlags = Annotated[Output, Flat]
ReaderFlags = Annotated[ReaderOptions, Flat]
ExecutorFlags = Annotated[ExecutorOptions, Flat]
