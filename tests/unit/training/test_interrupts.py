from __future__ import annotations

import os
import signal
import threading

import pytest

from bertie.training import interrupts
from bertie.training.interrupts import deferred_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_is_deferred_and_a_later_one_acts(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    previous = signal.signal(number, lambda received, _: handled.append(received))
    try:
        with deferred_interrupts() as deferred:
            os.kill(os.getpid(), number)
            assert (deferred, handled) == ([number], [])
            os.kill(os.getpid(), number)  # as when torchrun repeats the signal of a scheduler
            assert (deferred, handled) == ([number], [])
            monkeypatch.setattr(interrupts, "REPEAT_WINDOW", 0.0)
            os.kill(os.getpid(), number)
            assert (deferred, handled) == ([number], [number])
        os.kill(os.getpid(), number)
        assert handled == [number, number]
    finally:
        signal.signal(number, previous)


def test_handlers_stay_unchanged_outside_the_main_thread() -> None:
    handler = signal.getsignal(signal.SIGINT)
    in_block: list[object] = []

    def record_state() -> None:
        with deferred_interrupts() as deferred:
            in_block.extend([list(deferred), signal.getsignal(signal.SIGINT)])

    thread = threading.Thread(target=record_state)
    thread.start()
    thread.join()
    assert in_block == [[], handler]
