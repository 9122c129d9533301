"""What gpu.py and gpu_peers.py share: the minutes of the command, its report, and what they ask the GPU."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from bertie.base import runtime, storage
from results import environment


class OutOfTime(BaseException):
    """The part has used up its time. No Exception, so that no compiler catches it."""


class Budget:
    """The minutes of the command, from now on."""

    def __init__(self, minutes: float):
        self.begun, self.seconds = time.monotonic(), 60 * minutes

    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.begun)

    @contextmanager
    def until(self, reserve: float) -> Iterator[None]:
        """Raise OutOfTime inside when only `reserve` seconds are left."""

        def ring(*_: object) -> None:
            raise OutOfTime(f"stopped after {time.monotonic() - self.begun:.0f} s of the command")

        previous = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, self.left() - reserve))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


class Report:
    """The results, in a file that is written after each part."""

    def __init__(self, path: Path, commit: str | None):
        found = environment(runtime.use_threads())
        self.path = path
        self.content: dict[str, Any] = {"environment": found | {"commit": found["commit"] or commit}}
        self.content |= {"transformers": transformers.__version__, "cases": {}, "skipped": []}
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, message: str, **values: Any) -> None:
        self.content |= values
        storage.write_json(self.path, self.content)
        print(message, flush=True)

    def skip(self, what: str, why: str) -> None:
        self.content["skipped"].append(f"{what}: {why}")
        self.write(f"skipped {what}: {why}")


def dtype() -> torch.dtype:
    """Return the type of matrix products: bf16, or fp32 on a CPU."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def free_memory() -> None:
    """Return what is not in use to the GPU."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def short(error: BaseException) -> str:
    """Return the kind of an error and the beginning of its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
