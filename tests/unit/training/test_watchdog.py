"""A hang is said with the rank, the step and the place."""

from __future__ import annotations

import threading
import time

import pytest

from bertie import console
from bertie.training import watchdog as rooms
from bertie.training.distributed import Ranks
from bertie.training.watchdog import watchdog


def test_a_hang_is_said_with_its_place_each_time_that_it_lasts_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told = list[str](), threading.Semaphore(0)
    monkeypatch.setattr(rooms, "LEAST_SECONDS", 0.05)

    def info(text: str) -> None:
        said.append(text)
        told.release()

    monkeypatch.setattr(console, "info", info)

    def stuck_here(step: int, times: int) -> None:
        while sum(f"after step {step}; it is in " in text and "(stuck_here)" in text for text in said) < times:
            assert told.acquire(timeout=300)

    begun = time.monotonic()
    with watchdog(Ranks(3, 8)) as dog:
        dog.beat(41)
        stuck_here(41, 3)
        assert time.monotonic() - begun >= 0.2  # after 0.05, 0.1 and 0.2 s
        dog.beat(42)
        stuck_here(42, 1)
    assert all(text.startswith("warning: rank 3 of 8: nothing has happened for ") for text in said)


def test_long_steps_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    dog = rooms.Watchdog(Ranks())
    assert dog._limit == rooms.FIRST_SECONDS
    for step, seconds in enumerate((900, 100, 50), 1):
        now[0] += seconds
        dog.beat(step)
    assert dog._limit == 1000  # ten times the longest, without the first one
    now[0] += 5000
    dog.beat()  # an evaluation
    now[0] += 50
    dog.beat(4)
    assert dog._limit == 1000


def test_one_process_names_no_rank() -> None:
    dog = rooms.Watchdog(Ranks())
    assert dog._message().startswith("nothing has happened for ")
