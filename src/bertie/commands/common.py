"""Flags that several verbs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bertie.text.executors import Executor, make_executor


@dataclass(frozen=True)
class ExecutorOptions:
    """Where bertie processes the text."""

    executor: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a Ray cluster with shared files (pip install '.[ray]')."""
    workers: int = 0
    """Number of processes; 0: one per processor. The result is the same with any number."""
    ray_address: str = "local"
    """Address of the head of the Ray cluster, or auto; local: start a cluster on this machine."""

    def build(self) -> Executor:
        return make_executor(self.executor, self.workers, self.ray_address)


KeepAccents = Literal["strip", "keep"] | None
STRIP_ACCENTS: dict[KeepAccents, bool | None] = {"strip": True, "keep": False, None: None}  # as in NormalizerOptions
