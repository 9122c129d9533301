"""Metrics in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterable

import prometheus_client as prometheus
from prometheus_client import Counter, Gauge, Histogram

from bertie.serve.queue import QueueShare
from bertie.serve.worker import ComputedBatch

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


class Metrics:
    """All metrics of one server."""

    def __init__(self, shares: Iterable[QueueShare]):
        """Create them. shares: those of the models."""
        prometheus.disable_created_metrics()
        self.registry = where = prometheus.CollectorRegistry()
        for collector in (prometheus.PROCESS_COLLECTOR, prometheus.PLATFORM_COLLECTOR, prometheus.GC_COLLECTOR):
            where.register(collector)

        def counter(name: str, help: str, *labels: str) -> Counter:
            return Counter(f"bertie_{name}", help, labels, registry=where)

        def gauge(name: str, help: str, *labels: str) -> Gauge:
            return Gauge(f"bertie_{name}", help, labels, registry=where)

        def histogram(name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"bertie_{name}", help, labels, registry=where, buckets=buckets)

        self._requests = counter(
            "requests", "Requests by endpoint and status; 499: the client went away.", "endpoint", "status"
        )
        self._seconds = histogram("request_seconds", "Time from header to answer.", SECONDS, "endpoint")
        self._stages = histogram("stage_seconds", "Time of a request in each stage.", SECONDS, "stage")
        self._refused = counter("refused", "Refused requests by reason.", "reason")
        self._truncated = counter("truncated_texts", "Texts that were truncated.", "model")
        self._batch_seconds = histogram("batch_seconds", "Time to compute a batch.", SECONDS, "model")
        self._batch_tokens = histogram("batch_tokens", "Tokens of a batch.", TOKENS, "model")
        self._sequences = counter("sequences", "Computed sequences.", "model")
        self._failed = counter("failed_sequences", "Sequences that could not be computed.", "model")
        self._nonfinite = counter("nonfinite_sequences", "Sequences whose outputs were NaN or infinity.", "model")
        tokens = gauge("queue_tokens", "Tokens that wait or are being computed.", "model")
        sequences = gauge("queue_sequences", "Sequences that wait or are being computed.", "model")
        capacity = gauge("queue_capacity_tokens", "Most tokens that may wait.", "model")
        for share in shares:
            tokens.labels(share.name).set_function(lambda share=share: share.tokens)
            sequences.labels(share.name).set_function(lambda share=share: share.sequences)
            capacity.labels(share.name).set(share.capacity)
        self.ready = gauge("ready", "1 if /readyz succeeds.")

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
        if count:
            self._truncated.labels(model).inc(count)

    def batch(self, batch: ComputedBatch) -> None:
        """Count a computed batch."""
        self._batch_seconds.labels(batch.model).observe(batch.seconds)
        self._batch_tokens.labels(batch.model).observe(batch.tokens)
        self._sequences.labels(batch.model).inc(batch.sequences)
        if batch.failures:
            self._failed.labels(batch.model).inc(batch.failures)
            self._nonfinite.labels(batch.model).inc(batch.nonfinite)

    def text(self) -> bytes:
        """Return all metrics as Prometheus reads them."""
        return prometheus.generate_latest(self.registry)
