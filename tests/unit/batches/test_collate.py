from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.contracts import FILLER, Sequence, Targets
from bertie.batches.collate import collate, filler, join


def sequence(start: int, length: int, pair_label: int = -1, example: int = -1) -> Sequence:
    ids = np.arange(start, start + length, dtype=np.int32)
    return Sequence(ids, ids % 2, ids % 3 == 0, pair_label=pair_label, example=example)


def test_sequences_are_packed_end_to_end() -> None:
    batch = collate(
        [sequence(10, 3, pair_label=1, example=7), sequence(50, 1), sequence(20, 2, pair_label=0, example=8)], 9
    )
    assert batch.input_ids.tolist() == [10, 11, 12, 50, 20, 21]
    assert batch.token_type_ids.tolist() == [0, 1, 0, 0, 0, 1]
    assert batch.position_ids.tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.word_starts.tolist() == [False, False, True, False, False, True]
    assert batch.pair_label.tolist() == [1, -1, 0]
    assert batch.example.tolist() == [7, -1, 8]
    assert batch.ragged.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert batch.ragged.lengths.tolist() == [3, 1, 2]
    assert batch.ragged.max_seqlen == 9


def test_positions_and_languages_of_the_layout_are_packed() -> None:
    own = replace(
        sequence(10, 3), position_ids=np.array([0, 1, 1], np.int32), language_ids=np.array([2, 2, 1], np.int32)
    )
    batch = collate([sequence(20, 2), own, *filler(2, 0, 9)], 9)
    assert batch.position_ids.tolist() == [0, 1, 0, 1, 1, 0, 1]
    assert batch.language_ids is not None
    assert batch.language_ids.tolist() == [0, 0, 2, 2, 1, 0, 0]
    assert {array.dtype for array in (batch.position_ids, batch.language_ids)} == {np.dtype(np.int32)}
    targets = {"x": Targets(np.array([1]), np.array([7]), np.ones(1, np.float32))}
    joined = join([(batch, targets), (batch, targets)]).batch
    assert joined.language_ids.tolist() == [0, 0, 2, 2, 1, 0, 0] * 2  # type: ignore[union-attr]
    assert joined.tensors().language_ids.tolist() == joined.language_ids.tolist()  # type: ignore[union-attr]
    assert collate([sequence(20, 2)], 9).language_ids is None
    assert "language_ids" not in collate([sequence(20, 2)], 9).arrays


@given(st.integers(0, 400), st.integers(1, 130))
def test_filler_has_the_wanted_number_of_padding_tokens(tokens: int, max_seqlen: int) -> None:
    fillers = filler(tokens, 3, max_seqlen)
    assert sum(map(len, fillers)) == tokens
    for one in fillers:
        assert 0 < len(one) <= max_seqlen
        assert set(one.input_ids.tolist()) == {3}
        assert one.example == FILLER
        assert one.pair_label == -1
