from __future__ import annotations

import numpy as np

from bertie.base.contracts import Sequence
from bertie.batches.collate import collate, filler
from bertie.objectives.nsp import NextSentence
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer


def pair(length: int, kind: int) -> Sequence:
    return Sequence(
        np.arange(5, 5 + length, dtype=np.int32), np.zeros(length, np.int32), np.ones(length, bool), pair_label=kind
    )


def test_labeled_pairs_have_targets_at_cls(small_tokenizer: Tokenizer) -> None:
    batch = collate([pair(7, 0), pair(5, 1), pair(6, -1), pair(8, 1), *filler(3, small_tokenizer.pad_id, 64)], 64)
    after, targets, _ = NextSentence().label(batch, Labeling(small_tokenizer, np.random.default_rng(0)))
    assert after is batch
    assert targets.index.tolist() == [0, 7, 12, 18, 26]
    assert targets.weight.tolist() == [1, 1, 0, 1, 0]
    assert targets.label.tolist() == [0, 1, 0, 1, 0]
