"""How the rows of a step are shared out over ranks and forward passes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bertie.pretraining.feed import passes
from bertie.training.distributed import Ranks


@given(st.integers(0, 300), st.integers(1, 70))
def test_ranks_share_all_rows_nearly_equally(rows: int, count: int) -> None:
    parts = [Ranks(rank, count).own_range(rows) for rank in range(count)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(0, 50), st.integers(1, 300), st.integers(1, 70))
def test_passes_hold_all_rows_and_not_too_many(first: int, rows: int, most: int) -> None:
    parts = passes(range(first, first + rows), most)
    sizes = [len(part) for part in parts]
    assert [row for part in parts for row in part] == list(range(first, first + rows))
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) < 2 * -(-rows // most)  # fewer than twice as many as needed


def test_passes_have_one_size_if_possible() -> None:
    assert [len(part) for part in passes(range(16), 10)] == [8, 8]
    assert [len(part) for part in passes(range(7), 4)] == [3, 4]  # not seven times 1
