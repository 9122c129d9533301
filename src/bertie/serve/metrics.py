"""Metrics in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import prometheus_client as prometheus
from prometheus_client import Counter, Gauge, Histogram

from bertie.base.errors import NonFiniteError
from bertie.serve.queue import QueueShare

M = TypeVar("M")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class Metrics:
    """All metrics of one server."""

    def __init__(self, shares: Iterable[QueueShare]):
        """Create them. shares: the models' shares of the queue."""
        prometheus.disable_created_metrics()
        self.registry = where = prometheus.CollectorRegistry()
        for collector in (prometheus.PROCESS_COLLECTOR, prometheus.PLATFORM_COLLECTOR, prometheus.GC_COLLECTOR):
            where.register(collector)

        def metric(kind: Callable[..., M], name: str, help: str, *labels: str, **options: Any) -> M:
            return kind(f"bertie_{name}", help, labels, registry=where, **options)

        what = "Requests by endpoint and status; 499: the client went away."
        self._requests = metric(Counter, "requests", what, "endpoint", "status")
        self._seconds = metric(Histogram, "request_seconds", "Time from header to answer.", "endpoint", buckets=SECONDS)
        self._stages = metric(Histogram, "stage_seconds", "Time of a request in each stage.", "stage", buckets=SECONDS)
        self._refused = metric(Counter, "refused", "Refused requests by reason.", "reason")
        self._truncated = metric(Counter, "truncated_texts", "Texts that were truncated.", "model")
        self._batch_seconds = metric(Histogram, "batch_seconds", "Time to compute a batch.", "model", buckets=SECONDS)
        self._batch_tokens = metric(Histogram, "batch_tokens", "Tokens of a batch.", "model", buckets=TOKENS)
        self._sequences = metric(Counter, "sequences", "Computed sequences.", "model")
        self._failed = metric(Counter, "failed_sequences", "Sequences that could not be computed.", "model")
        what = "Sequences whose outputs were NaN or infinity."
        self._nonfinite = metric(Counter, "nonfinite_sequences", what, "model")
        tokens = metric(Gauge, "queue_tokens", "Tokens that wait or are being computed.", "model")
        sequences = metric(Gauge, "queue_sequences", "Sequences that wait or are being computed.", "model")
        capacity = metric(Gauge, "queue_capacity_tokens", "Most tokens that may wait.", "model")
        for share in shares:
            tokens.labels(share.name).set_function(lambda share=share: share.tokens)
            sequences.labels(share.name).set_function(lambda share=share: share.sequences)
            capacity.labels(share.name).set(share.capacity)
        self.ready = metric(Gauge, "ready", "1 if /readyz succeeds.")

    def request(self, endpoint: str, status: int, seconds: float, stages: dict[str, float], reason: str) -> None:
        """Count an answered request. stages: seconds by stage. reason: why it was refused, or ""."""
        self._requests.labels(endpoint, str(status)).inc()
        self._seconds.labels(endpoint).observe(seconds)
        for stage, duration in stages.items():
            self._stages.labels(stage).observe(duration)
        if reason:
            self._refused.labels(reason).inc()

    def truncated(self, model: str, count: int) -> None:
        """Count truncated texts."""
        self._truncated.labels(model).inc(count)

    def batch(self, model: str, sequences: int, tokens: int, seconds: float, failed: list[Exception]) -> None:
        """Count a computed batch. failed: the errors of the sequences that could not be computed."""
        self._batch_seconds.labels(model).observe(seconds)
        self._batch_tokens.labels(model).observe(tokens)
        self._sequences.labels(model).inc(sequences)
        self._failed.labels(model).inc(len(failed))
        self._nonfinite.labels(model).inc(sum(isinstance(error, NonFiniteError) for error in failed))

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return prometheus.generate_latest(self.registry)
