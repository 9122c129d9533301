from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from types import SimpleNamespace

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.batches.prefetch import prefetch
from bertie.training import clock as clock_module
from bertie.training.clock import PARTS, Clock, parse_duration
from bertie.training.schedules import LinearDecay


class Time:
    """A clock of the machine that the test sets."""

    now = 100.0


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Time:
    machine = Time()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=lambda: machine.now))
    return machine


def step(clock: Clock, machine: Time, *seconds: float, evaluation: float = 0.0) -> None:
    """Take steps of these durations."""
    for duration in seconds:
        machine.now += duration
        clock.tick(duration, evaluation)


def started(
    seconds: float, elapsed: float = 0.0, progress: float = 0.0, measured: Mapping[str, tuple[float, ...]] = {}
) -> Clock:
    clock = Clock(seconds, begun=clock_module.time.monotonic())
    clock.start(elapsed, progress, dict(measured))
    return clock


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("90m", 5400), ("24h", 86400), ("1.5h", 5400), ("2 d", 172800), (" 1s ", 1)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text, "budget") == seconds


@pytest.mark.parametrize(
    "text", ["", "24", "h", "-1h", "0s", "0.0h", "1h30m", "1e3s", "١h", "nan s", "inf h", "367d", "1w"]
)
def test_other_durations_are_refused(text: str) -> None:
    out_of_range = text in ("0s", "0.0h", "367d")
    message = "give more than 0 s and at most 366 d" if out_of_range else "give a number and its unit, such as 30s"
    with pytest.raises(UsageError, match=f"^budget is .*: {message}"):
        parse_duration(text, "budget")


def test_progress_is_linear_in_time(machine: Time) -> None:
    clock = started(10.0)
    seen = []
    for _ in range(9):
        step(clock, machine, 1.0)
        seen.append(clock.progress)
    assert seen == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert not clock.is_over(0)
    assert clock.part_of(0) == pytest.approx(0.9 * PARTS, abs=1)
    step(clock, machine, 0.5)
    assert clock.is_over(0)  # a further step of 0.9 s would end after the budget
    assert clock.part_of(0) == PARTS - 1


def test_time_before_the_first_step_does_not_skip_the_warmup(machine: Time) -> None:
    clock = Clock(10.0, begun=machine.now)
    machine.now += 4.0
    clock.start(0.0, 0.0, {})
    assert clock.progress == 0
    machine.now += 3.0
    clock.tick(1.0)
    assert clock.progress == pytest.approx(0.5)


def test_the_rest_of_the_schedule_is_spread_over_the_rest_of_the_time(machine: Time) -> None:
    clock = started(10.0)
    machine.now += 2.0
    clock.tick(0.1)
    clock.measure("evaluation", 1.0)
    clock.measure("checkpoint", 3.0)
    clock.tick(0.1)
    assert clock.progress == pytest.approx(0.2)  # knowing that is no progress
    machine.now += 2.0
    clock.update()
    assert clock.progress == pytest.approx(1 - 0.8 * 2 / 4)
    machine.now += 1.95
    clock.tick(0.1)
    assert clock.is_over(0)


def test_the_last_evaluation_is_expected_to_take_a_third_of_training_on_it(machine: Time) -> None:
    clock = started(10.0)
    step(clock, machine, 2.0, 0.3, 0.3, 0.3, evaluation=10.0)  # the first step also lays out the text
    assert clock.left == pytest.approx(10 - 2.9 - 1.0)
    clock.measure("evaluation", 0.4)  # what was measured counts
    assert clock.left == pytest.approx(10 - 2.9 - 0.4)


def test_a_slow_first_step_neither_ends_a_run_nor_skips_its_warmup(machine: Time) -> None:
    clock = started(60.0)
    step(clock, machine, 36.0, evaluation=64.0)  # further ones take 0.2 s
    assert clock.progress == pytest.approx(0.6)
    step(clock, machine, 0.2, 0.2, 0.2, evaluation=64.0)
    assert clock.progress == pytest.approx(0.6 + 0.4 * 0.6 / (24 - 64 / 3 * 0.2), abs=0.01)


def test_work_that_does_not_fit_before_the_last_step_is_left_out(machine: Time) -> None:
    clock = started(10.0)
    clock.tick(0.1)
    clock.measure("evaluation", 3.0)
    machine.now += 3.0
    assert clock.fits("evaluation")
    assert clock.fits("checkpoint")
    machine.now += 1.0
    assert not clock.fits("evaluation")
    assert clock.fits("checkpoint")


def test_time_after_an_evaluation_does_not_end_a_run(machine: Time) -> None:
    """A step is the last thing that a run does, so that its learning rate is known."""
    clock = started(10.0)
    machine.now += 11.0
    clock.update()
    assert not clock.is_over(0)
    assert clock.part_of(0) == PARTS - 1
    clock.tick(0.1)
    assert clock.is_over(0)


@pytest.mark.parametrize(
    ("elapsed", "seconds", "evaluation", "progress"),
    [
        (0.0, [*[0.2] * 20, 33.0], 0.0, 37 / 40),  # the process was suspended
        *(
            (0.0, [6.0 if step == slow else 0.2 for step in range(8)], 64.0, 7.4 / (40 - 64 / 3 * 0.2))
            for slow in range(4)
        ),
        *((elapsed, [4.0, 3.0, *[0.2] * 20], 64.0, (elapsed + 11) / (40 - 64 / 3 * 0.2)) for elapsed in (0.0, 20.0)),
    ],
)
def test_slow_steps_do_not_end_a_run(
    machine: Time, elapsed: float, seconds: list[float], evaluation: float, progress: float
) -> None:
    """The first one also lays out the text. An evaluation is not expected to take as long as many slow ones."""
    clock = started(40.0, elapsed, progress=elapsed / 40)
    step(clock, machine, *seconds, evaluation=evaluation)
    assert not clock.is_over(0)
    assert clock.progress == pytest.approx(progress, abs=0.05)


def test_processes_that_prepare_steps_know_the_progress(machine: Time) -> None:
    def estimates(worker: int, workers: int) -> Iterator[float]:  # noqa: ARG001
        while True:
            yield clock.estimate(0)

    clock = Clock(10.0, begun=machine.now)
    with closing(prefetch(estimates, 1)) as stream:  # its process has this time for ever
        assert next(stream) == 1.0  # not started
        clock.start(0.0, 0.5, {})
        clock.measure("evaluation", 5.0)
        following = next(value for value in islice(stream, 100_000) if value != 1.0)  # after those that wait already
        assert following == pytest.approx(clock.estimate(0)) == 0.5
        machine.now += 2.0
        clock.tick(0.1)
        following = next(value for value in islice(stream, 100_000) if value != 0.5)
        assert following == pytest.approx(clock.progress) == pytest.approx(0.7)


def test_one_slow_evaluation_does_not_take_the_rest_of_the_time(machine: Time) -> None:
    """Its own time is over, but the last evaluation is not expected to take as long."""
    clock = started(3600.0)
    for seconds in (5.0, 900.0, 5.0):
        machine.now += 200.0
        clock.tick(0.2)
        machine.now += seconds
        clock.measure("evaluation", seconds)
        clock.update()
    assert clock.left == pytest.approx(3600 - 1510 - 5)
    assert clock.progress == pytest.approx(1510 / 3595, abs=0.01)
    assert started(3600.0, 1510.0, 0.4, clock.measured).left == pytest.approx(clock.left)


def test_a_resumed_run_has_the_rest_of_its_time(machine: Time) -> None:
    clock = started(10.0, elapsed=6.0, progress=0.5)
    assert started(10.0, 6.0, 0.5, {"evaluation": (1.0,)}).left == pytest.approx(3.0)
    machine.now += 2.0
    clock.tick(0.1)
    assert clock.elapsed == pytest.approx(8.0)
    assert clock.progress == pytest.approx(0.75)


def test_a_resumed_run_without_time_left_ends_with_its_next_step(machine: Time) -> None:
    clock = started(10.0, elapsed=11.0, progress=0.9)
    assert not clock.is_over(0)
    step(clock, machine, 1.0)
    assert clock.is_over(0)


def test_a_budget_without_time_for_a_step_is_refused(machine: Time) -> None:
    clock = Clock(2.0, begun=machine.now)
    machine.now += 3.0
    with pytest.raises(UserError, match="the budget of 2 s is over before the first step"):
        clock.start(0.0, 0.0, {})


def test_the_schedule_follows_the_clock(machine: Time) -> None:
    clock = started(10.0)
    machine.now += 5.0
    clock.tick(0.1)
    assert LinearDecay(warmup=0.0).factor(clock.part_of(3), clock.parts) == pytest.approx(0.5)
    assert not clock.is_over(100)
    machine.now += 5.0
    clock.tick(0.1)
    assert clock.is_over(1)
