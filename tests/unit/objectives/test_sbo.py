from __future__ import annotations

import numpy as np

from bertie.base.contracts import Batch, Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.objectives import SpanBoundary
from bertie.objectives.masking import MaskedRow, MaskedSpans
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer

RNG = np.random.default_rng(0)


def row(tokenizer: Tokenizer, seed: int, count: int = 4, tokens: int = 200) -> Batch:
    rng = np.random.default_rng(seed)
    sequences = []
    for _ in range(count):
        ids = rng.integers(100, 500, 40).astype(np.int32)
        ids[[0, 20, 39]] = [tokenizer.cls_id, tokenizer.sep_id, tokenizer.sep_id]
        starts = rng.random(40) < 0.8
        sequences.append(Sequence(ids, np.zeros(40, np.int32), starts, pair_label=int(rng.integers(2))))
    return collate([*sequences, *filler(tokens - 40 * count, tokenizer.pad_id, 64)], 64)


def given(tokenizer: Tokenizer, batch: Batch, spans: MaskedSpans) -> Labeling:
    nothing = Targets(*(np.zeros(0, int),) * 3)
    return Labeling(tokenizer, RNG, notes={"mlm": MaskedRow(batch.input_ids, nothing, spans)})


def test_targets_of_two_spans_by_hand(small_tokenizer: Tokenizer) -> None:
    """The span 3 to 5 and the span 8, in a row with room for 6 targets."""
    spans = MaskedSpans(*map(np.array, ([3, 4, 5, 8], [50, 51, 52, 60], [3, 3, 3, 8], [5, 5, 5, 8])), capacity=6)
    batch = row(small_tokenizer, 0)
    after, targets, _ = SpanBoundary().label(batch, given(small_tokenizer, batch, spans))
    assert after is batch
    assert targets.index.reshape(-1, 2).tolist() == [[2, 6], [2, 6], [2, 6], [7, 9], [0, 0], [0, 0]]
    assert targets.label.tolist() == [50, 51, 52, 60, 0, 0]
    assert targets.offset.tolist() == [0, 1, 2, 0, 0, 0]
    assert targets.weight.tolist() == [1, 1, 1, 1, 0, 0]


def test_tokens_after_the_last_position_have_no_weight(small_tokenizer: Tokenizer) -> None:
    n = 25
    spans = MaskedSpans(np.arange(3, 3 + n), np.full(n, 9), np.full(n, 3), np.full(n, 2 + n), capacity=n)
    batch = row(small_tokenizer, 0)
    targets = SpanBoundary().label(batch, given(small_tokenizer, batch, spans)).targets
    assert targets.weight.tolist() == [1] * 20 + [0] * 5
    assert targets.offset.max() == 19
