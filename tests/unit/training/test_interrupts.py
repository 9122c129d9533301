from __future__ import annotations

import os
import signal
import threading

import pytest

from bertie.training import interrupts
from bertie.training.interrupts import deferred_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_a_later_one_acts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = signal.signal(number, lambda got, _: seen.append(got))
    try:
        with deferred_interrupts() as noted:
            os.kill(os.getpid(), number)
            assert (noted, seen) == ([number], [])
            os.kill(os.getpid(), number)  # a scheduler's, passed on by torchrun
            assert (noted, seen) == ([number], [])
            monkeypatch.setattr(interrupts, "REPEAT_WINDOW", 0.0)
            os.kill(os.getpid(), number)
            assert (noted, seen) == ([number], [number])
        os.kill(os.getpid(), number)
        assert seen == [number, number]
    finally:
        signal.signal(number, before)


def test_in_another_thread_nothing_is_touched() -> None:
    before = signal.getsignal(signal.SIGINT)
    inside: list[object] = []

    def look() -> None:
        with deferred_interrupts() as noted:
            inside.extend([list(noted), signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert inside == [[], before]
