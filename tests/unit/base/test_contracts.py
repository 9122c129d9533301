from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.contracts import MicroBatch, Sequence, Targets
from bertie.batches.collate import collate, filler


def sequence(length: int) -> Sequence:
    return Sequence(np.arange(length, dtype=np.int32), np.zeros(length, np.int32), np.ones(length, bool))


def targets(index: list[int]) -> Targets:
    return Targets(np.array(index, np.int64), np.zeros(len(index), np.int64), np.ones(len(index), np.float32))


@given(
    st.lists(st.integers(0, 29), min_size=1, max_size=20),
    st.lists(st.integers(0, 29), min_size=1, max_size=20),
)
def test_targets_of_a_micro_batch_count_in_its_rows(first: list[int], second: list[int]) -> None:
    micro = MicroBatch.of(collate([sequence(30)], 30), {"a": targets(first), "b": targets(second)})
    assert micro.rows.tolist() == sorted({*first, *second})
    assert micro.rows[micro.targets["a"].index].tolist() == first
    assert micro.rows[micro.targets["b"].index].tolist() == second


def test_counts_sum_the_weights_and_tokens_exclude_filler() -> None:
    batch = collate([sequence(5), sequence(3), *filler(9, 0, 4)], 8)
    weights = Targets(np.array([0, 5]), np.array([1, 1]), np.array([1.0, 0.0], np.float32))
    micro = MicroBatch.of(batch, {"a": weights})
    assert micro.counts == {"a": 1.0}
    assert micro.tokens == 8


def test_tensors_have_the_documented_dtypes() -> None:
    batch = collate([sequence(5), sequence(3)], 8)
    at_first = Targets(batch.ragged.cu_seqlens[:-1], np.zeros(2, np.int32), np.ones(2, np.float64))
    micro = MicroBatch.of(batch, {"a": at_first}).tensors()
    integers = (micro.rows, micro.batch.input_ids, micro.batch.ragged.cu_seqlens, micro.targets["a"].index)
    assert {tensor.dtype for tensor in integers} == {torch.int64}
    assert micro.batch.word_starts.dtype == torch.bool
    assert micro.targets["a"].weight.dtype == torch.float32
    assert micro.batch.ragged.lengths.tolist() == [5, 3]
    assert micro.batch.ragged.max_seqlen == 8
