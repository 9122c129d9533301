"""A hang is said once, with the rank, the step and the place."""

from __future__ import annotations

import threading
import time

import pytest

from bertie import console
from bertie.training import watchdog as rooms
from bertie.training.distributed import Ranks
from bertie.training.watchdog import watchdog


def test_a_hang_is_said_once_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    said, told, released = list[str](), threading.Event(), threading.Event()
    monkeypatch.setattr(rooms, "LEAST_SECONDS", 0.05)

    def info(text: str) -> None:
        said.append(text)
        told.set()

    monkeypatch.setattr(console, "info", info)

    def stuck_here() -> None:
        assert told.wait(300)
        released.wait(0.3)  # time in which it would be said again

    with watchdog(Ranks(3, 8)) as dog:
        dog.beat(41)
        stuck_here()
        dog.beat(42)
        told.clear()
        stuck_here()
    assert len(said) == 2
    assert said[0].startswith("warning: rank 3 of 8: nothing has happened for ")
    assert "after step 41; it is in" in said[0]
    assert "after step 42; it is in" in said[1]
    assert "(stuck_here)" in said[0]


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
