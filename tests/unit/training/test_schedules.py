from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import UsageError
from bertie.training.schedules import (
    Cosine,
    InverseSquareRoot,
    LinearDecay,
    Schedule,
    SlantedTriangular,
    WarmupStableDecay,
)


def curve(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step, steps) for step in range(steps)]


@given(st.floats(0, 1), st.integers(1, 300))
def test_linear_rises_then_falls_and_is_never_zero(warmup: float, steps: int) -> None:
    found = curve(LinearDecay(warmup=warmup), steps)
    warmup_steps = round(warmup * steps)
    assert all(0 < factor <= 1 for factor in found)
    assert found[:warmup_steps] == sorted(set(found[:warmup_steps]))
    assert found[warmup_steps:] == sorted(set(found[warmup_steps:]), reverse=True)
    if warmup_steps < steps:
        assert found[warmup_steps] == 1


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (LinearDecay(warmup=0.4), [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (LinearDecay(warmup=0.0), [1, 3 / 4, 2 / 4, 1 / 4]),
        (LinearDecay(warmup=1.0), [1 / 4, 2 / 4, 3 / 4]),
        (LinearDecay(warmup=0.01), [1]),
        (Cosine(warmup=0.0), [1, (2 + 2**0.5) / 4, 1 / 2, (2 - 2**0.5) / 4]),
        (Cosine(warmup=0.5, floor=0.2), [1 / 3, 2 / 3, 1, 0.6]),
        # Howard & Ruder's formula with cut_frac 0.2, ratio 4 and 10 updates: p = t / cut, then 1 - (t - cut) / (T - cut).
        (SlantedTriangular(warmup=0.2, ratio=4), [(1 + 3 * p / 8) / 4 for p in (0, 4, 8, 7, 6, 5, 4, 3, 2, 1)]),
        (WarmupStableDecay(warmup=0.2, decay=0.3), [1 / 3, 2 / 3, 1, 1, 1, 1, 1, 3 / 3, 2 / 3, 1 / 3]),
        (WarmupStableDecay(warmup=0.0, decay=0.0), [1, 1, 1]),
        (InverseSquareRoot(warmup=0.3), [1 / 4, 2 / 4, 3 / 4, 1, *((4 / n) ** 0.5 for n in range(5, 11))]),
    ],
)
def test_schedules_match_values_computed_by_hand(schedule: Schedule, expected: list[float]) -> None:
    assert curve(schedule, len(expected)) == pytest.approx(expected)


def test_warmup_and_decay_are_at_most_the_whole_run() -> None:
    with pytest.raises(UsageError, match=r"warmup \+ decay is more than 1"):
        WarmupStableDecay(warmup=0.6, decay=0.5)


@given(
    st.sampled_from([Cosine, LinearDecay, SlantedTriangular, WarmupStableDecay, InverseSquareRoot]),
    st.floats(0, 0.9),
    st.integers(1, 300),
)
def test_all_schedules_rise_to_the_peak_and_never_above_it(kind: type[Schedule], warmup: float, steps: int) -> None:
    found = curve(kind(warmup=warmup), steps)
    peak = found.index(max(found))
    assert all(0 < factor <= 1 for factor in found)
    assert found[:peak] == sorted(found[:peak])
    assert found[peak:] == sorted(found[peak:], reverse=True)
    if round(warmup * steps) < steps:
        assert max(found) == pytest.approx(1)
