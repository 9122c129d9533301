"""The queue: tokenized requests that wait for the worker, bounded in tokens.

A job is what one request asks of one model. The worker takes batches: sequences of one operation, up to a number of tokens,
and never from different operations together. Requests take turns: each gives at most a quarter of a batch, and then lets
others give three times as much. So a request with one text never waits for all texts of a request with thousands, and a
large request of n tokens is complete after 4n tokens and what waited before it, however many small ones arrive. Sequences
in a batch need no similar lengths, because batches are packed; the worker sorts them.

With a target for the latency, all requests have the same time, and whoever comes later must not delay who was promised an
answer. So there are no turns: jobs are computed in the order in which they were admitted, of all models together, in
smaller batches. Late jobs, which were promised nothing, come after the others.

The server's event loop adds and cancels jobs, and the worker's thread takes them.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

from bertie.base.contracts import Sequence
from bertie.serve.speed import BatchSpeed

ComputeAll = Callable[[list[Sequence]], list[Any]]
"""Computes the results of sequences, in order."""
TURNS = 4  # a request gives at most this part of a batch, then of the tokens that its lane computes
# With a target, a batch takes a third of it: who arrives during a batch waits for its end, and smaller batches are slower.
PARTS = 3
LEAST_BATCH = 64  # tokens of a batch, however short the target is


class QueueFull(Exception):  # noqa: N818
    """The queue has no room for a job now, or its worker has stopped."""


@dataclass(eq=False)
class QueuedJob:
    """The sequences of one request. The queue changes the fields below `waiter` under its lock."""

    sequences: list[Sequence]
    """The sequences."""
    lane: Lane
    """Where the job waits."""
    waiter: Any = None
    """A future of the event loop that waits for the job. The queue only keeps it."""
    late: bool = False
    """Whether all others come before it, because the target does not hold for it."""
    wait: float = 0.0
    """The predicted seconds from its admission to its end; 0: there is no prediction."""
    results: list[Any] = field(default_factory=list)
    """Results of the sequences, in order; an exception in place of a result that failed."""
    tokens: int = 0
    """Tokens of all sequences."""
    taken: int = 0
    """Sequences that the worker has taken."""
    missing: int = 0
    """Sequences without a result."""
    cancelled: bool = False
    """Whether nobody waits for the results."""
    admitted: float = 0.0
    """When the job was added, in seconds of `time.monotonic`."""
    started: float = 0.0
    """When the worker took its first sequence."""
    finished: float = 0.0
    """When its last result was there."""

    def __post_init__(self) -> None:
        self.missing = len(self.sequences)
        self.results = [None] * self.missing
        self.tokens = sum(map(len, self.sequences))


@dataclass(eq=False)
class Lane:
    """The jobs of one operation of one model. Their sequences may share a batch."""

    compute: ComputeAll
    """Computes their results."""
    owner: QueueShare
    """The model's share of the queue."""
    speed: BatchSpeed = field(default_factory=BatchSpeed)
    """How long its batches take."""
    jobs: list[tuple[int, int, QueuedJob]] = field(default_factory=list)
    """Jobs with sequences to take, cancelled ones among them: a heap by the time of their next turn, then by order. With a
    target, the late jobs are at 1, the others at 0."""
    tokens: int = 0
    """Tokens that wait."""
    late: int = 0
    """Those of them that belong to late jobs."""
    clock: int = 0
    """The time, in tokens that were taken. It moves on to the next turn if no job is due."""
    added: int = 0
    """Jobs that were added."""


@dataclass(eq=False)
class QueueShare:
    """The part of the queue that belongs to one model."""

    name: str
    """Name of the model."""
    capacity: int
    """Most tokens that wait or are being computed."""
    tokens: int = 0
    """Tokens that wait or are being computed."""
    sequences: int = 0
    """Sequences that wait or are being computed."""


class Slice(NamedTuple):
    """Some sequences of a job, in a batch."""

    job: QueuedJob
    first: int
    last: int


class LaneBatch(NamedTuple):
    """The next sequences for the worker."""

    lane: Lane
    slices: list[Slice]

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for job, first, last in self.slices for sequence in job.sequences[first:last]]


class TokenQueue:
    """Jobs of all models. Its methods are safe to call from any thread."""

    def __init__(self, batch_tokens: int, max_wait: float = 0.0, target: float = 0.0):
        """Create an empty queue.

        Args:
            batch_tokens: Tokens in a batch. A longer sequence makes a batch of its own.
            max_wait: Seconds that the oldest job of a lane waits for others if a batch is not full.
            target: Seconds in which a job should be computed. 0: jobs take turns.
        """
        self.batch_tokens, self.max_wait, self.target = batch_tokens, max_wait, target
        self._changed = threading.Condition()
        self._lanes: deque[Lane] = deque()  # those with jobs; the next to serve is first
        self._running: tuple[Lane, int, float] | None = None  # what is computed: its tokens, and when it began
        self.closed = False
        """Whether new jobs are refused."""

    def add(self, job: QueuedJob) -> None:
        """Add a job, if all of it fits.

        Raises:
            QueueFull: The model's share has no room now, or the queue is closed.
        """
        share = job.lane.owner
        with self._changed:
            if self.closed or share.tokens + job.tokens > share.capacity:
                raise QueueFull
            share.tokens += job.tokens
            share.sequences += len(job.sequences)
            self._count(job, job.tokens)
            job.admitted = time.monotonic()
            if not job.lane.jobs:
                self._lanes.append(job.lane)
            job.lane.added += 1
            due = job.late if self.target else job.lane.clock
            heapq.heappush(job.lane.jobs, (due, job.lane.added, job))
            self._changed.notify()

    @property
    def idle(self) -> bool:
        """Whether nothing waits. A batch may be computed, but not with a target."""
        with self._changed:
            return not any(lane.tokens for lane in self._lanes) and not (self.target and self._running)

    def wait(self, lane: Lane, tokens: int) -> float:
        """Predict the seconds until what waits in a lane, and some more tokens, are computed.

        The batch that is computed now comes first. Lanes take turns, so each batch of the lane waits for one batch of each
        of the others. With a target, all that was admitted in time comes first, and all batches count as full, because what
        is admitted later fills them.
        """
        with self._changed:
            seconds, size = self._remaining(time.monotonic()), self._size(lane)
            others = [other for other in self._lanes if other is not lane]
            if self.target:
                seconds += sum(other.speed.seconds(other.tokens - other.late, self._size(other)) for other in others)
                batches = ceil((lane.tokens - lane.late + tokens) / size)
                return seconds + batches * lane.speed.batch(size) + self.max_wait
            turns = ceil((lane.tokens + tokens) / size)
            seconds += sum(other.speed.seconds(min(other.tokens, turns * size), size) for other in others)
            return seconds + lane.speed.seconds(lane.tokens + tokens, size)

    def cancel(self, job: QueuedJob) -> None:
        """Remove what the worker has not taken of a job. It will not be notified."""
        with self._changed:
            if not job.cancelled and job.missing:
                job.cancelled = True
                waiting = len(job.sequences) - job.taken
                self._count(job, -self._release(job, job.sequences[job.taken :]))
                job.missing -= waiting
                job.taken = len(job.sequences)

    def take(self, timeout: float) -> LaneBatch | None:
        """Wait for a batch. Returns None after `timeout` seconds without one, or if the queue is closed and empty."""
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                self._drop_empty_lanes()
                if self.closed and not self._lanes:
                    return None
                now = time.monotonic()
                ready = self._ready_at(now) if self._lanes else end
                if self._lanes and ready <= now:
                    return self._next_batch(now)
                if now >= end:
                    return None
                self._changed.wait(min(ready, end) - now)

    def finish(self, batch: LaneBatch, results: list[Any]) -> list[QueuedJob]:
        """Store the results of a batch. Returns the jobs that are now complete and wanted."""
        complete, position, now = [], 0, time.monotonic()
        with self._changed:
            self._running = None
            for job, first, last in batch.slices:
                job.results[first:last] = results[position : position + last - first]
                position += last - first
                self._release(job, job.sequences[first:last])
                job.missing -= last - first
                if not job.missing and not job.cancelled:
                    job.finished = now
                    complete.append(job)
        return complete

    def close(self) -> None:
        """Refuse new jobs. `take` still returns what waits."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _count(self, job: QueuedJob, tokens: int) -> None:
        """Count tokens of a job that wait from now on, or, if they are negative, no longer."""
        job.lane.tokens += tokens
        job.lane.late += job.late * tokens

    def _size(self, lane: Lane) -> int:
        """Return the tokens of a full batch."""
        if not self.target:
            return self.batch_tokens
        return min(max(lane.speed.within(self.target / PARTS), LEAST_BATCH), self.batch_tokens)

    def _release(self, job: QueuedJob, sequences: list[Sequence]) -> int:
        """Give the room of sequences back. Returns their tokens."""
        tokens = sum(map(len, sequences))
        job.lane.owner.tokens -= tokens
        job.lane.owner.sequences -= len(sequences)
        return tokens

    def _remaining(self, now: float) -> float:
        """Return the seconds that the batch still needs which is computed now."""
        if self._running is None:
            return 0.0
        lane, tokens, began = self._running
        return max(lane.speed.batch(tokens) - (now - began), 0.0)

    def _drop_empty_lanes(self) -> None:
        for _ in range(len(self._lanes)):
            lane = self._lanes.popleft()
            while lane.jobs and (job := lane.jobs[0][-1]).taken == len(job.sequences):  # cancelled
                heapq.heappop(lane.jobs)
            if lane.jobs:
                self._lanes.append(lane)

    def _ready_at(self, now: float) -> float:
        """Return when the first lane may be served, and move the lane that is ready first to the front.

        With a target, of the lanes that are ready, the one with the oldest job is the first.
        """
        times = [self._lane_ready_at(lane) for lane in self._lanes]
        ready = [i for i, at in enumerate(times) if at <= now]
        if self.target and ready:
            first = min(ready, key=lambda i: (self._lanes[i].jobs[0][0], self._lanes[i].jobs[0][-1].admitted))
        else:
            first = ready[0] if ready else times.index(min(times))
        self._lanes.rotate(-first)
        return times[first]

    def _lane_ready_at(self, lane: Lane) -> float:
        if not self.max_wait or self.closed or lane.tokens >= self._size(lane):
            return 0.0
        return min(job.admitted for *_, job in lane.jobs) + self.max_wait

    def _next_batch(self, now: float) -> LaneBatch:
        """Take a batch from the first lane, which then is the last one."""
        lane = self._lanes.popleft()
        slices: list[Slice] = []
        size = room = self._size(lane)
        turn = size if self.target else max(size // TURNS, 1)
        while lane.jobs and room > 0:
            due, number, job = lane.jobs[0]
            first, tokens = job.taken, self._take_turn(job, turn, room, not slices)
            room -= tokens
            if job.taken > first:
                job.started = job.started or now
                slices.append(Slice(job, first, job.taken))
                self._count(job, -tokens)
            if job.taken == len(job.sequences):
                heapq.heappop(lane.jobs)
            elif tokens and not self.target:
                heapq.heapreplace(lane.jobs, (due + (TURNS - 1) * tokens, number, job))
            else:  # a batch that is full leaves the job its turn
                break
            lane.clock = max(lane.clock, due) + tokens
        self._running = lane, size - room, now
        if lane.jobs:
            self._lanes.append(lane)
        return LaneBatch(lane, slices)

    def _take_turn(self, job: QueuedJob, turn: int, room: int, alone: bool) -> int:
        """Take sequences of a job for its turn. Returns their tokens.

        Args:
            job: The job.
            turn: Tokens after which its turn ends.
            room: Tokens that the batch still holds.
            alone: The batch is empty: a sequence that is longer than a batch fits too.
        """
        tokens = 0
        while job.taken < len(job.sequences) and tokens < turn:
            size = len(job.sequences[job.taken])
            if tokens + size > room and (tokens or not alone):
                break
            job.taken, tokens = job.taken + 1, tokens + size
        return tokens
