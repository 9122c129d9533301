"""Structured logs: one JSON object per line on stderr, written by a thread, so that a slow reader delays no request."""

from __future__ import annotations

import queue
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

import msgspec

MAX_WAITING = 10_000  # lines; more are dropped and counted


class JsonLog:
    """Writes events. Never contains texts of requests."""

    def __init__(self, requests: bool = True):
        """Start the thread. requests: whether to log every request, or only what happens to the server."""
        self.requests = requests
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._encode = msgspec.json.Encoder(enc_hook=str).encode
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def event(self, name: str, level: str = "info", **fields: Any) -> None:
        """Log an event. It is dropped if the reader of stderr is too slow."""
        try:
            self._lines.put_nowait({"time": round(time.time(), 3), "level": level, "event": name, **fields})
        except queue.Full:
            self._dropped += 1

    def close(self, timeout: float = 5.0) -> None:
        """Write what waits, and end the thread. It gives up after `timeout` seconds."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line["dropped_events"] = dropped
            with suppress(OSError, ValueError, AttributeError):  # stderr is closed: the server goes on
                sys.stderr.write(self._encode(line).decode() + "\n")
                sys.stderr.flush()


def places(error: Exception) -> list[str]:
    """Return the lines through which a raised exception passed, FILE:NUMBER, the first cause last.

    Its message is not logged: it could contain a text.
    """
    return [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
