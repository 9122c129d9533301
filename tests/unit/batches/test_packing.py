from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.batches.packing import pack, row_count


@settings(max_examples=300, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), max_size=80),
    row_tokens=st.integers(30, 120),
)
def test_no_sequence_is_used_twice_and_no_row_overflows(lengths: list[int], row_tokens: int) -> None:
    array = np.array(lengths, np.int64)
    rows = pack(array, row_tokens)
    assert len(rows) == row_count(array, row_tokens) == sum(lengths) // row_tokens
    taken = [index for row in rows for index in row]
    assert len(taken) == len(set(taken))
    assert all(row for row in rows)
    for row in rows:
        assert array[row].sum() <= row_tokens
    # A gap remains only if no remaining sequence fits.
    remaining = set(range(len(lengths)))
    for row in rows:
        remaining -= set(row)
        gap = row_tokens - array[row].sum()
        assert all(lengths[index] > gap for index in remaining)


def test_rows_keep_the_given_order_except_at_their_ends() -> None:
    lengths = np.random.default_rng(0).integers(5, 128, 5000)
    rows = pack(lengths, 4096)
    first = [row[0] for row in rows]
    assert first == sorted(first)
    in_order = [np.mean(np.diff(row) == 1) for row in rows[:40]]
    assert np.mean(in_order) > 0.7


def test_the_longest_sequence_that_fits_fills_the_gap() -> None:
    assert pack(np.array([7, 8, 2, 3, 1]), 10) == [[0, 3], [1, 2]]


@pytest.mark.parametrize("seed", range(3))
def test_gaps_are_small_when_lengths_vary(seed: int) -> None:
    lengths = np.random.default_rng(seed).integers(10, 129, 8192)
    rows = pack(lengths, 4096)
    used = sum(int(lengths[row].sum()) for row in rows)
    assert 1 - used / (4096 * len(rows)) < 0.001
