"""The queue and the worker, without a model: a sequence is a number of tokens, and its result is this number."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.contracts import Sequence
from bertie.serve.queue import Lane, LaneBatch, QueuedJob, QueueFull, QueueShare, TokenQueue
from bertie.serve.worker import MAX_FAILURES, Failure, Health, Worker

from .conftest import wait_until


def sequence(tokens: int) -> Sequence:
    ids = np.full(tokens, 7, np.int32)
    return Sequence(ids, np.zeros_like(ids), np.ones(tokens, bool))


def lane(capacity: int = 10**6, name: str = "m") -> Lane:
    return Lane(lambda sequences: [len(each) for each in sequences], QueueShare(name, capacity))


def job(where: Lane, *lengths: int) -> QueuedJob:
    return QueuedJob([sequence(tokens) for tokens in lengths], where)


def take(queue: TokenQueue) -> LaneBatch:
    batch = queue.take(0)
    assert batch is not None
    return batch


def lengths(queue: TokenQueue) -> list[int]:
    """The lengths of the sequences of the next batch."""
    return [len(each) for each in take(queue).sequences]


def test_a_batch_holds_as_many_tokens_as_fit() -> None:
    queue, where = TokenQueue(100), lane()
    queue.add(job(where, 40, 40, 40, 10))
    assert lengths(queue) == [40, 40]
    assert lengths(queue) == [40, 10]
    assert queue.take(0) is None


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_sequences_without_tokens_are_computed_too(target: float) -> None:
    queue, where = TokenQueue(100, target=target), lane()
    for sizes in ([0], [25, 0], [0, 0, 3]):
        asked = job(where, *sizes)
        queue.add(asked)
        while asked.missing:
            batch = take(queue)
            queue.finish(batch, where.compute(batch.sequences))
        assert asked.results == sizes
    assert where.owner.sequences == 0


def test_a_large_request_does_not_delay_a_small_one() -> None:
    queue, where = TokenQueue(100), lane()
    queue.add(job(where, *[10] * 1000))
    queue.add(job(where, 9))
    assert 9 in lengths(queue)


def test_many_small_requests_do_not_starve_a_large_one() -> None:
    queue, where = TokenQueue(100), lane()
    large = job(where, *[50] * 10)
    queue.add(large)
    for _ in range(100):
        for _ in range(5):
            queue.add(job(where, 20))
        queue.take(0)
    assert large.taken == 10


def test_a_large_request_gets_a_quarter_of_an_overloaded_server() -> None:
    """Small requests wait all the time, and arrive as fast as they are computed."""
    queue, where = TokenQueue(100), lane()
    for _ in range(50):
        queue.add(job(where, 20))
    large = job(where, *[5] * 100)
    queue.add(large)
    tokens = 0
    while large.taken < 100:
        tokens += sum(given := lengths(queue))
        assert 20 in given  # the small ones advance too
        for _ in range(5):
            queue.add(job(where, 20))
    waited = 50 * 20
    assert waited + 3 * 500 < tokens <= waited + 4 * 500


def test_operations_take_turns_and_never_share_a_batch() -> None:
    queue, first, second = TokenQueue(100), lane(name="a"), lane(name="b")
    for _ in range(4):
        queue.add(job(first, 60, 60))
    queue.add(job(second, 10))
    assert names(queue, 3) == ["a", "b", "a"]


def test_the_queue_is_bounded_in_tokens_for_each_model() -> None:
    queue, where, other = TokenQueue(100), lane(100), lane(100, "other")
    queue.add(job(where, 50, 40))
    with pytest.raises(QueueFull):
        queue.add(job(where, 11))
    queue.add(job(where, 10))
    queue.add(job(other, 100))
    batch = take(queue)
    with pytest.raises(QueueFull):  # what is being computed counts
        queue.add(job(where, 1))
    queue.finish(batch, [0] * 3)
    assert (where.owner.tokens, where.owner.sequences) == (0, 0)
    queue.add(job(where, 100))


def lane_at(rate: float, name: str = "m", overhead: float = 0.0) -> Lane:
    """A lane whose batches take a known time."""
    found = lane(name=name)
    for tokens in (10, 100):
        found.speed.count(tokens, overhead + tokens / rate)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the queue, which stands still."""
    now = [100.0]
    monkeypatch.setattr("bertie.serve.queue.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_the_predicted_wait_counts_what_waits_and_what_is_computed(clock: list[float]) -> None:
    queue, where = TokenQueue(100), lane_at(10, overhead=1)
    assert queue.idle
    assert queue.wait(where, 50) == pytest.approx(1 + 5)
    queue.add(job(where, *[50] * 5))
    assert not queue.idle
    assert queue.wait(where, 0) == pytest.approx(3 + 25)
    batch = take(queue)
    clock[0] += 4
    assert queue.wait(where, 50) == pytest.approx(11 - 4 + 2 + 20)
    clock[0] += 100  # the batch takes longer than predicted
    assert queue.wait(where, 50) == pytest.approx(2 + 20)
    queue.finish(batch, [0, 0])
    gone = job(where, 100)
    queue.add(gone)
    assert queue.wait(where, 0) == pytest.approx(3 + 25)
    queue.cancel(gone)
    assert queue.wait(where, 0) == pytest.approx(2 + 15)


@pytest.mark.parametrize("target", [0.0, 80.0])
def test_a_server_that_computes_what_waited_is_idle_unless_it_has_a_target(target: float) -> None:
    queue = TokenQueue(100, target=target)
    queue.add(job(lane(), 50))
    assert not queue.idle
    batch = take(queue)
    assert queue.idle == (not target)
    queue.finish(batch, [0])
    assert queue.idle


def test_the_predicted_wait_counts_the_turns_of_other_models(clock: list[float]) -> None:  # noqa: ARG001
    queue, busy, rare = TokenQueue(100), lane_at(10, "busy"), lane_at(100, "rare")
    queue.add(job(busy, *[50] * 8))
    assert queue.wait(rare, 50) == pytest.approx(10 + 0.5)  # one batch of the busy model
    assert queue.wait(rare, 150) == pytest.approx(20 + 1.5)
    queue.add(job(rare, 50))
    assert queue.wait(busy, 0) == pytest.approx(40 + 0.5)


def names(queue: TokenQueue, count: int) -> list[str]:
    """The owners of the next batches, each of which is computed at once."""
    found = []
    for _ in range(count):
        batch = take(queue)
        found.append(batch.lane.owner.name)
        queue.finish(batch, [0] * len(batch.sequences))
    return found


def test_with_a_target_jobs_of_all_lanes_are_computed_in_the_order_of_their_admission(clock: list[float]) -> None:
    queue, first, second = TokenQueue(100, target=80), lane_at(10, "a"), lane_at(10, "b")
    large = job(first, *[10] * 25)
    queue.add(large)
    for where in (second, first, second):
        clock[0] += 1
        queue.add(job(where, 100))
    assert names(queue, 2) == ["a", "a"]
    assert large.taken == 20  # no turns
    assert names(queue, 1) == ["a"]
    assert names(queue, 3) == ["b", "a", "b"]
    assert queue.take(0) is None


def test_with_a_target_batches_are_small_enough(clock: list[float]) -> None:  # noqa: ARG001
    for overhead, count in ((0.05, 27), (0.2, 25), (0.5, 21)):  # of 2 s less the overhead
        queue = TokenQueue(4096, target=6)
        queue.add(job(lane_at(1000, overhead=overhead), *[70] * 40))
        assert lengths(queue) == [70] * count
    slow = TokenQueue(4096, target=0.1)
    slow.add(job(lane_at(1000, overhead=0.2), *[16] * 20))
    assert lengths(slow) == [16] * 4
    unknown = TokenQueue(100, target=8)
    unknown.add(job(lane(), 50, 50, 50))
    assert lengths(unknown) == [50, 50]


def test_late_jobs_come_last_and_delay_no_other(clock: list[float]) -> None:
    queue, where, other = TokenQueue(100, target=80), lane_at(10, "a"), lane_at(10, "b")
    late = job(where, *[50] * 8)
    late.late = True
    queue.add(late)
    assert not queue.idle
    assert queue.wait(where, 50) == queue.wait(other, 50) == pytest.approx(10)
    assert names(queue, 1) == ["a"]
    clock[0] += 1
    queue.add(job(other, 100))
    clock[0] += 1
    queue.add(job(where, 50))
    assert names(queue, 2) == ["b", "a"]
    assert late.taken == 3  # its sequences fill the batch of the other
    queue.cancel(late)
    assert (where.tokens, where.late, where.owner.tokens) == (0, 0, 0)
    assert queue.idle


def test_the_predicted_wait_with_a_target_is_that_of_full_batches(clock: list[float]) -> None:
    queue, where, other = TokenQueue(90, max_wait=1, target=80), lane_at(10, "a", 1), lane_at(20, "b")
    assert queue.wait(where, 1) == pytest.approx(10 + 1)
    queue.add(job(other, 90, 90, 50))
    queue.add(job(where, 50))
    assert queue.wait(where, 40) == pytest.approx(11.5 + 10 + 1)
    assert queue.wait(where, 41) == pytest.approx(11.5 + 2 * 10 + 1)
    clock[0] += 1
    take(queue)
    clock[0] += 2
    assert queue.wait(where, 41) == pytest.approx(2.5 + 7 + 2 * 10 + 1)


ARRIVAL = st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans(), st.integers(0, 3))


@given(st.lists(ARRIVAL, min_size=1, max_size=30), st.integers(100, 400))
def test_with_a_target_no_job_takes_longer_than_predicted(
    arrivals: list[tuple[int, int, bool, int]], size: int
) -> None:
    """Jobs that arrive while others wait and are computed, on a clock that only computing and pauses move on."""
    now = [0.0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.serve.queue.time", SimpleNamespace(monotonic=lambda: now[0]))
        queue, lanes = TokenQueue(size, target=400), [lane_at(10, str(number)) for number in range(3)]
        promised: list[tuple[QueuedJob, float]] = []

        def compute() -> None:
            if (batch := queue.take(0)) is not None:
                sizes = [len(each) for each in batch.sequences]
                now[0] += batch.lane.speed.batch(sum(sizes))
                queue.finish(batch, sizes)

        for number, count, late, batches in arrivals:
            added = job(lanes[number], *[20] * count)
            added.late = late
            if not late:  # of another lane, it may first wait for a batch that is not yet full
                promised.append((added, now[0] + queue.wait(added.lane, added.tokens) + 2 * size / 10))
            queue.add(added)
            for _ in range(batches):
                compute()
        while not queue.idle:
            compute()
        assert all(each.finished <= limit + 1e-6 for each, limit in promised)


def test_a_cancelled_job_leaves_the_queue_and_its_room() -> None:
    queue, where = TokenQueue(30), lane(100)
    gone, kept = job(where, 30, 30, 30), job(where, 10)
    queue.add(gone)
    queue.add(kept)
    batch = take(queue)
    queue.cancel(gone)
    queue.cancel(gone)
    assert where.owner.tokens == 40
    assert queue.finish(batch, [1]) == []
    assert lengths(queue) == [10]
    assert queue.take(0) is None


def test_a_batch_waits_for_others_until_its_deadline(clock: list[float]) -> None:
    queue, where = TokenQueue(100, max_wait=0.2), lane()
    queue.add(job(where, 10))
    clock[0] += 0.19
    assert queue.take(0) is None
    clock[0] += 0.02
    assert lengths(queue) == [10]
    queue.add(job(where, 10))
    queue.add(job(where, 90))
    assert lengths(queue) == [10, 90]  # full, so it does not wait


def test_a_closed_queue_is_emptied() -> None:
    queue, where = TokenQueue(10, max_wait=60), lane()
    queue.add(job(where, 10, 10))
    queue.close()
    with pytest.raises(QueueFull):
        queue.add(job(where, 1))
    assert [lengths(queue), lengths(queue)] == [[10], [10]]
    assert queue.take(60) is None


def test_a_worker_ends_although_the_last_job_was_cancelled() -> None:
    queue, where = TokenQueue(10), lane()
    gone = job(where, 10, 10)
    queue.add(gone)
    batch = take(queue)
    queue.cancel(gone)
    queue.close()
    queue.finish(batch, [1])
    taken: list[LaneBatch | None] = []
    waiting = threading.Thread(target=lambda: taken.append(queue.take(3600)), daemon=True)
    waiting.start()
    waiting.join(60)
    assert taken == [None]


REQUEST = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 120), min_size=1, max_size=9), st.booleans())


@given(st.lists(REQUEST, max_size=20), st.integers(1, 100))
def test_every_sequence_is_computed_once_and_all_room_is_given_back(
    requests: list[tuple[int, list[int], bool]], batch_tokens: int
) -> None:
    queue = TokenQueue(batch_tokens)
    lanes = [lane(name=str(number)) for number in range(3)]
    jobs = [job(lanes[number], *tokens) for number, tokens, _ in requests]
    for each in jobs:
        queue.add(each)
    cancelled = [each for each, (_, _, gone) in zip(jobs, requests, strict=True) if gone]
    complete: Counter[QueuedJob] = Counter()
    for number in range(10**4):
        if number == 2:
            for each in cancelled:
                queue.cancel(each)
        if (batch := queue.take(0)) is None and number > 2:
            break
        if batch is not None:
            computed = batch.lane.compute(batch.sequences)
            assert computed
            assert sum(computed) <= batch_tokens or sum(size > 0 for size in computed) == 1
            complete.update(queue.finish(batch, computed))
    assert all(each.results == [len(s) for s in each.sequences] for each in complete)
    assert set(complete) >= {each for each in jobs if each not in cancelled}
    assert max(complete.values(), default=1) == 1
    assert [(each.owner.tokens, each.owner.sequences, each.tokens) for each in lanes] == [(0, 0, 0)] * 3


# The worker


class Engine:
    """Computes lengths, slowly or not at all."""

    def __init__(self) -> None:
        self.poison = 13
        self.broken = False
        self.go = threading.Event()
        self.go.set()

    def compute(self, sequences: list[Sequence]) -> list[int]:
        self.go.wait(300)
        if self.broken or any(len(each) == self.poison for each in sequences):
            raise RuntimeError("out of memory")
        return [len(each) for each in sequences]


class Running:
    """A worker with its engine."""

    def __init__(self, hang_timeout: float = 60) -> None:
        self.engine, self.queue = Engine(), TokenQueue(100)
        self.lane = Lane(self.engine.compute, QueueShare("m", 10**6))
        self.health = Health(lambda: self.engine.compute([sequence(1)]), 1)
        self.metrics = Mock()
        self.done = threading.Semaphore(0)
        self.worker = Worker(self.queue, {"m": self.health}, self.deliver, self.metrics, Mock(), hang_timeout)
        self.worker.start()

    def deliver(self, jobs: list[QueuedJob]) -> None:
        self.done.release(len(jobs)) if jobs else None

    def run(self, *tokens: int) -> list[object]:
        work = job(self.lane, *tokens)
        self.queue.add(work)
        assert self.done.acquire(timeout=300)
        return work.results


@pytest.fixture
def running() -> object:
    found = Running()
    yield found
    found.queue.close()
    assert found.worker.join(300)


def test_a_sequence_that_fails_does_not_fail_the_others(running: Running) -> None:
    found = running.run(1, 2, 13, 4, 13)
    assert [each if isinstance(each, int) else None for each in found] == [1, 2, None, 4, None]
    assert isinstance(found[2], Failure)
    name, sequences, tokens, _, errors = running.metrics.batch.call_args.args
    assert (name, sequences, tokens, len(errors)) == ("m", 5, 33, 2)
    for _ in range(5):  # a text that nobody can compute does not make a model look broken
        running.run(13)
    assert not running.health.broken


def test_the_worker_learns_from_batches_that_succeed(running: Running) -> None:
    running.run(20, 20)
    learned = running.lane.speed.batch(40)
    assert learned > 0
    running.run(13)
    assert running.lane.speed.batch(40) == learned


def test_an_engine_that_fails_repeatedly_is_broken_until_it_computes_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertie.serve.worker.PROBE_SECONDS", 0.05)
    running.engine.broken = True
    for _ in range(MAX_FAILURES):
        assert not running.health.broken
        assert isinstance(running.run(5)[0], Failure)
    wait_until(lambda: running.worker.broken_models() == ["m"])
    running.engine.broken = False
    wait_until(lambda: not running.health.broken)
    assert running.run(5) == [5]


def test_a_batch_that_does_not_end_is_a_problem() -> None:
    running = Running(hang_timeout=0.1)
    assert running.worker.problem() == ""
    running.engine.go.clear()
    running.queue.add(job(running.lane, 5))
    wait_until(lambda: "more than 0.1 s" in running.worker.problem())
    running.engine.go.set()
    running.queue.close()
    assert running.worker.join(300)
    assert running.worker.problem() == "the worker has ended"
