from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.training.schedules import Linear


def factors(warmup: float, steps: int) -> list[float]:
    return [Linear(warmup=warmup).factor(step, steps) for step in range(steps)]


def test_values() -> None:
    # 4 warm-up steps rise to the full rate at step 4, then it falls to reach 0 after the last.
    assert factors(0.4, 10) == pytest.approx([1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    assert factors(0.0, 4) == [1, 3 / 4, 2 / 4, 1 / 4]
    assert factors(1.0, 3) == [1 / 4, 2 / 4, 3 / 4]
    assert factors(0.01, 1) == [1]


@given(st.floats(0, 1), st.integers(1, 300))
def test_rises_then_falls_and_no_step_is_wasted(warmup: float, steps: int) -> None:
    found = factors(warmup, steps)
    rising = round(warmup * steps)
    assert all(0 < factor <= 1 for factor in found)
    assert found[:rising] == sorted(set(found[:rising]))
    assert found[rising:] == sorted(set(found[rising:]), reverse=True)
    if rising < steps:
        assert found[rising] == 1
