"""The service: models, queue and worker, as the event loop uses them. It knows nothing of HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, TypeVar

import torch

from bertie.base.contracts import Sequence
from bertie.base.errors import NonFiniteError, UserError
from bertie.serve.keys import ApiKeys
from bertie.serve.limits import Limits, Refused, too_large, try_later
from bertie.serve.logs import JsonLog
from bertie.serve.metrics import Metrics
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.queue import Lane, QueuedJob, QueueFull, TokenQueue
from bertie.serve.speed import BatchSpeed, Correction
from bertie.serve.worker import Worker
from bertie.tokenizers.batching import batches

T = TypeVar("T")
R = TypeVar("R")
WAIT_SHARE = 0.5  # of the timeout that the work in the queue may take
OWN_SHARE = 0.8  # of the timeout that a request may take alone, by the prediction
TARGET_SHARE = 0.8  # of the target that a prediction may take: batches vary, and answers wait for the event loop, too
AT_ONCE = 32_768  # characters that are tokenized before another request has its turn
FEW_TEXTS = 32  # whose outputs are decoded in the event loop
INLINE = 512  # characters that are tokenized without a change of threads, which would take longer


class ClientGone(Exception):  # noqa: N818
    """The client has closed the connection."""


@dataclass(eq=False)
class Service:
    """The models with their queue and their worker."""

    models: dict[str, ServedModel]
    """By name."""
    limits: Limits
    """The limits of requests."""
    log: JsonLog
    """Where events go."""
    keys: ApiKeys = ApiKeys()
    """The keys that may use the server."""
    draining: bool = False
    """Whether the server stops."""
    buffered: int = 0
    """Bytes of the bodies of all requests that have no answer yet, of the attention, cosines and masks that they ask for,
    and of the large answers that clients have not read yet."""
    started: float = field(default_factory=time.time)
    """When the models were loaded, in seconds since 1970."""

    def __post_init__(self) -> None:
        default = 16_384 if torch.cuda.is_available() else 4096
        self.queue = TokenQueue(
            self.limits.batch_tokens or default, self.limits.max_wait_ms / 1000, self.limits.latency_target
        )
        self._correction = Correction()
        self.metrics = Metrics(model.share for model in self.models.values())
        health = {name: model.health for name, model in self.models.items()}
        self.worker = Worker(self.queue, health, self._deliver, self.metrics, self.log, self.limits.hang_timeout)
        self._tokenizers = ThreadPoolExecutor(1, "tokenizer")
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Warm each model up, and start the worker. Called in the event loop.

        Raises:
            UserError: The vectors of a model are NaN or infinity.
        """
        self._loop = asyncio.get_running_loop()
        for model in self.models.values():
            try:
                seconds = model.health.warm_up()
            except NonFiniteError:
                problem = "its vectors are NaN or infinity: the model is damaged, or its training diverged"
                raise UserError(f"{model.predictor.folder}: {problem}: serve another one") from None
            for lane in model.lanes.values():
                lane.speed.count(model.health.probe_tokens, seconds)
        self.worker.start()

    def stop(self, timeout: float) -> bool:
        """Complete what is in the queue. Returns whether the worker has ended in time."""
        self.queue.close()
        ended = self.worker.join(timeout)
        self._tokenizers.shutdown(wait=False, cancel_futures=True)
        return ended

    # State

    def live_problems(self) -> list[str]:
        """Return why the process must be restarted; [] if it need not."""
        problem = self.worker.problem()
        return [problem] if problem else []

    def ready_problems(self) -> list[str]:
        """Return why requests should go elsewhere; [] if they need not."""
        broken = [f"model {name}: its last computations failed" for name in self.worker.broken_models()]
        return [*self.live_problems(), *broken, *["the server is draining"] * self.draining]

    def model(self, name: str, operation: Operation) -> ServedModel:
        """Return the model of a request.

        Raises:
            Refused: It is unknown, or does not offer the operation, or is broken.
        """
        if not name and len(self.models) > 1:
            raise Refused(422, "model", f"name one of the models: {', '.join(self.models)}", "model")
        model = self.named(name or next(iter(self.models)))
        if operation not in model.lanes:
            message = f"the model {model.name} has no {operation}: it offers {', '.join(model.operations)}"
            if (engine := model.predictor.engine) != "plain":
                message += f" with the engine {engine} (its operator may serve more with --engine plain)"
            raise Refused(422, "operation", message, "model")
        if problem := "its last computations failed" if model.health.broken else self.worker.problem():
            raise try_later(503, "broken", f"the model {model.name} is not available: {problem}", 10)
        return model

    def named(self, name: str) -> ServedModel:
        """Return a model by its name. Raises Refused if it is unknown."""
        if name not in self.models:
            raise Refused(404, "model", f"no model has this name: the models are {', '.join(self.models)}", "model")
        return self.models[name]

    @contextmanager
    def buffer(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes that one request keeps in memory. They are forgotten at the end.

        The function raises Refused: with status 413 if this request counts too many, and with status 429 if all requests
        together do.
        """
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            most = self.limits.buffer_bytes
            if counted + size > most:  # trying again would not help
                raise too_large("bytes in memory", counted + size, most, "split the request", "--buffer-bytes")
            if self.buffered + size > most:
                raise try_later(429, "buffer", "the memory for requests is full", 1)
            counted += size
            self.buffered += size

        try:
            yield count
        finally:
            self.buffered -= counted

    # Work

    def require_room(self, lane: Lane, spent: float) -> None:
        """Raise Refused, with status 429, if the queue is full. Called before anything is tokenized.

        Args:
            lane: The operation.
            spent: Seconds since the body of the request arrived.
        """
        if lane.owner.tokens >= lane.owner.capacity:
            raise self._overloaded(lane)
        self._require_time(self.queue.wait(lane, 1), spent, lane)

    async def offload(self, size: int, work: Callable[..., R], *arguments: Any) -> R:
        """Return the result of some work: in the tokenizers' thread if its size is large, so that the loop goes on.

        Args:
            size: Number of texts.
            work: The function.
            *arguments: Its arguments.
        """
        if size <= FEW_TEXTS:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._tokenizers, work, *arguments)

    async def tokenize(
        self, encode: Callable[[list[T]], list[Sequence]], values: list[T], sizes: Iterable[int], timeout: float
    ) -> list[Sequence]:
        """Tokenize values in the thread for it, a part at a time, so that requests take turns.

        Args:
            encode: Turns values into sequences.
            values: The values.
            sizes: Characters of each.
            timeout: Seconds to wait.

        Returns:
            The sequences of all values. Their `example` is the index of the value, if `encode` sets it.

        Raises:
            Refused: The time is over.
        """
        parts = list(batches(list(zip(values, sizes, strict=True)), AT_ONCE, itemgetter(1)))
        if len(parts) == 1 and sum(size for _, size in parts[0]) <= INLINE:
            return encode(values)
        loop = asyncio.get_running_loop()
        sequences: list[Sequence] = []
        before = 0
        try:
            async with asyncio.timeout(max(timeout, 0)):
                for part in parts:
                    done = await loop.run_in_executor(self._tokenizers, encode, [value for value, _ in part])
                    sequences += done if not before else (_renumbered(sequence, before) for sequence in done)
                    before += len(part)
        except TimeoutError:
            raise self._too_slow() from None
        return sequences

    async def compute(
        self, lane: Lane, sequences: list[Sequence], gone: Callable[[], Awaitable[object]], timeout: float, spent: float
    ) -> QueuedJob:
        """Compute sequences, in turns with other requests.

        Args:
            lane: The operation.
            sequences: The sequences.
            gone: Waits until the client goes away.
            timeout: Seconds to wait.
            spent: Seconds since the body of the request arrived.

        Returns:
            The job with all results, of which some may be failures.

        Raises:
            Refused: The queue is full, or the time is over.
            ClientGone: The client has gone away.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        job = QueuedJob(sequences, lane, waiter)
        if self._alone(job) > OWN_SHARE * self.limits.timeout and self.queue.idle:
            await loop.run_in_executor(self._tokenizers, self._measure, lane)
        self._admit(job, spent)
        watch = asyncio.ensure_future(gone())
        watch.add_done_callback(lambda _: _fail(waiter, ClientGone()))
        timer = loop.call_later(max(timeout, 0), _fail, waiter, self._too_slow())
        try:
            await waiter
        finally:
            self._learn(job)  # also if the client gives up, which must not hide that the prediction was too short
            watch.cancel()
            timer.cancel()
            self.queue.cancel(job)  # what is complete stays
        return job

    def _too_slow(self) -> Refused:
        seconds = self.limits.timeout
        return Refused(504, "timeout", f"no result after {seconds:g} s: send fewer or shorter texts, or try later")

    def _learn(self, job: QueuedJob) -> None:
        """Learn how wrong the prediction for a job was, now that it is computed, or nobody waits for it.

        Short waits say little: the event loop causes their times, not the queue.
        """
        if self.limits.latency_target and job.wait > self.limits.latency_target / 4:
            now = time.monotonic()
            self._correction.observe(job.wait, now - job.admitted, now)

    def _admit(self, job: QueuedJob, spent: float) -> None:
        capacity = job.lane.owner.capacity
        if job.tokens > capacity:
            raise too_large("tokens in the request", job.tokens, capacity, "split it", "--queue-tokens")
        if (alone := self._alone(job)) > (limit := OWN_SHARE * self.limits.timeout):
            most = int(limit / alone * job.tokens)  # not 429: to send it again would not help
            raise too_large("tokens in the request", job.tokens, most, "split it", "--timeout")
        wait = self.queue.wait(job.lane, job.tokens)
        in_time = self._require_time(wait, spent, job.lane)
        job.late, job.wait = not in_time, wait * in_time
        try:
            self.queue.add(job)
        except QueueFull:
            raise self._overloaded(job.lane) from None

    def _alone(self, job: QueuedJob) -> float:
        """Return the predicted seconds of a job if nothing else is computed."""
        return job.lane.speed.seconds(job.tokens, self.queue.batch_tokens)

    def _measure(self, lane: Lane) -> None:
        """Forget what is known of a lane's speed, and measure it: another program may have slowed the batches before."""
        health = self.models[lane.owner.name].health
        seconds, lane.speed = health.warm_up(), BatchSpeed()
        lane.speed.count(health.probe_tokens, seconds)

    def _require_time(self, wait: float, spent: float, lane: Lane) -> bool:
        """Refuse a request that would wait for too long. Otherwise all requests of an overload would be late.

        If nothing waits, and with a target nothing is computed, nothing is refused: only a computation shows whether the
        predicted speed is right.

        Args:
            wait: The predicted seconds until it is computed.
            spent: Seconds since its body arrived.
            lane: The operation.

        Returns:
            Whether it will be computed in time. On an idle server, only the prediction itself counts.

        Raises:
            Refused: It would not, and the server is not idle; status 429.
        """
        target = self.limits.latency_target
        if target:
            in_time = spent + wait * self._correction.factor(time.monotonic()) <= TARGET_SHARE * target
        else:
            in_time = wait <= WAIT_SHARE * self.limits.timeout
        if not in_time and not self.queue.idle:
            raise self._overloaded(lane)
        return in_time or wait <= target

    def _overloaded(self, lane: Lane) -> Refused:
        return try_later(429, "queue", "too much work waits", self.queue.wait(lane, 0))

    def _deliver(self, jobs: list[QueuedJob]) -> None:
        if jobs and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so has whoever waited
                self._loop.call_soon_threadsafe(_wake, jobs)


def _renumbered(sequence: Sequence, before: int) -> Sequence:
    """Return a sequence whose example counts from the start of the request. before: examples before its part."""
    return sequence if sequence.example < 0 else replace(sequence, example=sequence.example + before)


def _fail(waiter: asyncio.Future[None], error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _wake(jobs: list[QueuedJob]) -> None:
    for job in jobs:
        if not job.waiter.done():
            job.waiter.set_result(None)
