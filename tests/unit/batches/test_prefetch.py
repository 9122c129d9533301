from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest

from bertie.base.errors import UserError
from bertie.batches.prefetch import prefetch


@pytest.fixture(autouse=True)
def _no_process_remains() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def numbers(worker: int, workers: int) -> Iterator[tuple[int, int]]:
    return ((number, os.getpid()) for number in count(worker, workers))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_items_come_in_order_with_any_number_of_workers(workers: int) -> None:
    found = list(islice(prefetch(numbers, workers), 20))
    assert [number for number, _ in found] == list(range(20))
    assert len({process for _, process in found}) == max(workers, 1)
    assert (os.getpid() in {process for _, process in found}) == (workers == 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetch_ends_when_the_items_end(workers: int) -> None:
    assert list(prefetch(lambda worker, workers: iter(range(worker, 7, workers)), workers)) == list(range(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_user_error_is_raised_unchanged(workers: int) -> None:
    def broken(worker: int, workers: int) -> Iterator[int]:
        for number in range(worker, 10, workers):
            if number == 5:
                raise UserError("shard 5 is damaged")
            yield number

    found: list[int] = []
    with pytest.raises(UserError, match=r"^shard 5 is damaged$"):
        found.extend(prefetch(broken, workers))
    steps = prefetch(broken, workers)
    assert [next(steps) for _ in range(5)] == [0, 1, 2, 3, 4]


def test_workers_ignore_interrupt_and_termination_signals() -> None:
    steps = prefetch(numbers, 2)
    process = next(steps)[1]
    os.kill(process, signal.SIGINT)
    os.kill(process, signal.SIGTERM)
    assert [number for number, _ in islice(steps, 50)] == list(range(1, 51))


def test_a_bug_is_raised_with_its_traceback() -> None:
    def broken(worker: int, _: int) -> Iterator[float]:
        yield 1 / worker

    with pytest.raises(
        RuntimeError, match=r"in a process that prepares text:\n(.*\n)+ZeroDivisionError: division by zero"
    ):
        next(prefetch(broken, 2))


@pytest.mark.parametrize("_", range(4))
def test_a_killed_worker_is_reported(_: int) -> None:
    """The moment of the kill is random. With a shared lock, about one kill in forty left all processes waiting."""
    steps = prefetch(numbers, 2)
    os.kill(next(steps)[1], signal.SIGKILL)
    with pytest.raises(UserError, match=r"one of 2 processes that prepare text was killed.* fewer --training\.workers"):
        for _ in steps:
            pass


def test_workers_end_when_the_generator_is_closed() -> None:
    steps = prefetch(numbers, 2)
    processes = {next(steps)[1] for _ in range(2)}
    steps.close()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and any(Path(f"/proc/{process}").exists() for process in processes):
        time.sleep(0.01)
    assert not any(Path(f"/proc/{process}").exists() for process in processes)
