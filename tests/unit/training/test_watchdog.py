"""A hang is said with its place."""

from __future__ import annotations

import faulthandler
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bertie.training import watchdog as rooms


def test_a_hang_is_said_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(rooms, "LEAST_SECONDS", 0.05)
    with log.open("w") as file, rooms.watchdog() as dog:
        monkeypatch.setattr(sys, "__stderr__", file)

        def stuck_here(times: int) -> None:
            until = time.monotonic() + 300
            while log.read_text().count("in stuck_here") < times:
                assert time.monotonic() < until

        for step in (1, 2):
            dog.beat(step)
            stuck_here(step)


def test_long_steps_are_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = [0.0], list[float]()

    def set_timer(seconds: float, **_: Any) -> None:
        limits.append(seconds)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", set_timer)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with rooms.watchdog() as dog:
        for step, seconds in enumerate((900, 100, 50), 1):
            now[0] += seconds
            dog.beat(step)
        now[0] += 5000
        dog.beat()  # an evaluation
        now[0] += 50
        dog.beat(4)
    # The first step compiles. The limit is ten times the longest other one; a step after 50 s does not set the timer again.
    assert limits == pytest.approx([1.1 * limit for limit in (1800, 300, 1000, 1000)])
