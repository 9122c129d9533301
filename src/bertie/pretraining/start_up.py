"""How long a pre-training takes until it trains: the seconds of each part, from the start of the process to its first step."""

from __future__ import annotations

import time
from typing import Any

from bertie.base import console
from bertie.training.run_folder import RunFolder


class StartUp:
    """A clock of the start of this process. `end` ends a part; the next one begins there."""

    def __init__(self, since: float | None = None):
        """Begin.

        Args:
            since: When the process was started, in seconds of `time.monotonic`. The time until now is a part, "Python".
                None: now, because a process that does other things, too, has called pre-training.
        """
        self._begun = self._last = time.monotonic() if since is None else since
        self._parts: dict[str, float] = {}
        self._is_over = False
        if since is not None:
            self.end("Python")

    def end(self, part: str) -> None:
        """End a part: the time since the end of the one before."""
        now = time.monotonic()
        self._parts[part] = now - self._last
        self._last = now

    def end_with_step(self, run: RunFolder | None, record: dict[str, Any]) -> None:
        """End the start with the first step of this process: print its parts, and note them in environment.json.

        Args:
            run: The run folder, or None to note nothing.
            record: The record of a step. Only the first call does anything.
        """
        if self._is_over:
            return
        self._is_over = True
        self.end("first step")
        total = self._last - self._begun
        if run is not None:
            console.info(f"first step after {total:.1f} s: {self}")
            seconds = {part: round(value, 3) for part, value in (*self._parts.items(), ("total", total))}
            run.append("starts", {"step": record["step"], "seconds": seconds})

    def __str__(self) -> str:
        return ", ".join(f"{part} {seconds:.1f}" for part, seconds in self._parts.items())
