"""The worker: one thread that computes all batches, and how healthy it is.

One thread serves all models, because each batch uses all processors or the GPU: batches side by side would only slow each
other down. Lanes take turns, so a busy model delays the batches of another by one batch at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bertie.base import runtime
from bertie.base.contracts import Sequence
from bertie.serve.logs import JsonLog, places
from bertie.serve.metrics import Metrics
from bertie.serve.queue import ComputeAll, LaneBatch, QueuedJob, TokenQueue

MAX_FAILURES = 3  # consecutive failures after which a model counts as broken
# Requests of ever other sizes leave ever more freed memory unused. It is returned when nothing waits, and now and then.
IDLE_SECONDS, TRIM_SECONDS = 1.0, 30.0
PROBE_SECONDS = 5.0  # between two attempts to compute the probe of a broken model


class Failure(NamedTuple):
    """In place of a result: computing it raised an exception, or the result is not finite."""

    error: Exception


@dataclass(eq=False)
class Health:
    """Whether a model computes."""

    probe: Callable[[], object]
    """Computes something small. Raises an exception if the result is not finite."""
    probe_tokens: int
    """Tokens that the probe computes."""
    failures: int = 0
    """Consecutive failures: a batch failed, and then the probe too. So a text that cannot be computed breaks no model."""

    @property
    def broken(self) -> bool:
        return self.failures >= MAX_FAILURES

    def warm_up(self) -> float:
        """Compute the probe twice. Returns the seconds of the second time: the first compiles code."""
        self.probe()
        started = time.monotonic()
        self.probe()
        return time.monotonic() - started

    def check(self) -> None:
        """Compute the probe, and count a failure or forget the earlier ones."""
        try:
            self.probe()
            self.failures = 0
        except Exception:
            self.failures += 1


@dataclass(eq=False)
class Worker:
    """Takes batches from a queue and computes them, in a thread."""

    queue: TokenQueue
    """The queue."""
    health: dict[str, Health]
    """By the name of the model."""
    deliver: Callable[[list[QueuedJob]], None]
    """Called in the thread with the jobs that a batch has completed."""
    metrics: Metrics
    """Where batches are counted."""
    log: JsonLog
    """Where failures go."""
    hang_timeout: float
    """Seconds after which a batch counts as hanging."""
    busy_since: float = 0.0
    """When the current batch began, in seconds of `time.monotonic`; 0: there is none."""
    _thread: threading.Thread | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the thread. It ends after `queue.close()`, when nothing waits any more."""
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread. Returns whether it has ended."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.alive

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def problem(self) -> str:
        """Say why no model computes; "" if all is well. Only a restart helps."""
        since = self.busy_since  # read once: the thread changes it
        if since and time.monotonic() - since > self.hang_timeout:
            return f"a batch has been computing for more than {self.hang_timeout:g} s"
        return "" if self.alive else "the worker has ended"

    def broken_models(self) -> list[str]:
        """Return the names of the models whose last batches failed."""
        return [name for name, health in self.health.items() if health.broken]

    def _run(self) -> None:
        probed, returned, used = 0.0, time.monotonic(), False
        while True:
            idle = IDLE_SECONDS if used else 3600.0
            batch = self.queue.take(PROBE_SECONDS if self.broken_models() else idle)
            if batch is not None:
                self._work(batch)
                used = True
            elif self.queue.closed:
                return
            if used and (batch is None or time.monotonic() - returned >= TRIM_SECONDS):
                runtime.return_freed_memory()
                returned, used = time.monotonic(), False
            if self.broken_models() and time.monotonic() - probed >= PROBE_SECONDS:
                self._probe()
                probed = time.monotonic()

    def _work(self, batch: LaneBatch) -> None:
        name = batch.lane.owner.name
        health = self.health[name]
        sequences = batch.sequences
        self.busy_since = started = time.monotonic()
        results = _compute(batch.lane.compute, sequences)
        seconds = time.monotonic() - started
        failed = [result.error for result in results if isinstance(result, Failure)]
        if len(failed) == len(results):
            health.check()
        else:
            health.failures = 0
        self.busy_since = 0.0
        self.deliver(self.queue.finish(batch, results))
        tokens = sum(map(len, sequences))
        self.metrics.batch(name, len(sequences), tokens, seconds, failed)
        if not failed:
            batch.lane.speed.count(tokens, seconds)
            return
        first = type(failed[0])
        facts: dict[str, Any] = {"sequences": len(failed), "of": len(sequences)}
        if raised := places(failed[0]):
            facts["where"] = raised[-1]
        self.log.event("batch_failed", "error", model=name, error=f"{first.__module__}.{first.__qualname__}", **facts)

    def _probe(self) -> None:
        """Try to compute something with each broken model."""
        self.busy_since = time.monotonic()
        for health in self.health.values():
            if health.broken:
                health.check()
        self.busy_since = 0.0


def _compute(compute: ComputeAll, sequences: list[Sequence]) -> list[Any]:
    """Compute results. If it fails, halve the batch, so that one sequence does not take the others with it."""
    try:
        results = compute(sequences)
        if len(results) != len(sequences):
            raise RuntimeError(f"{len(results)} results of {len(sequences)} sequences")
        return results
    except Exception as error:
        if len(sequences) == 1:
            return [Failure(error)]
    middle = len(sequences) // 2
    return [*_compute(compute, sequences[:middle]), *_compute(compute, sequences[middle:])]
