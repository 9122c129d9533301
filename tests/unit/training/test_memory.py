from __future__ import annotations

import pytest

from bertie.training.memory import fitting


@pytest.mark.parametrize(
    ("room", "rows"),
    [(1000, 9), (1099, 9), (1100, 10), (200, 1), (10, 1)],
    ids=["some", "not one more", "one", "tight", "none"],
)
def test_rows_that_fit(room: int, rows: int) -> None:
    """100 bytes of weights and gradients, and 100 more for every row."""
    asked: list[int] = []

    def peak(count: int) -> int:
        asked.append(count)
        return 100 + 100 * count

    assert fitting(peak, room) == rows
    assert asked == [1, 2]


def test_rows_that_cost_nothing() -> None:
    assert fitting(lambda _: 100, 1000) == 901
