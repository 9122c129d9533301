from __future__ import annotations

import numpy as np
from tests.unit.objectives.random_rows import row

from bertie.base.contracts import Batch, Targets
from bertie.objectives import SpanBoundary
from bertie.objectives.masking import MaskedRow, MaskedSpans
from bertie.objectives.objective import Labeling
from bertie.tokenizers.tokenizer import Tokenizer

RNG = np.random.default_rng(0)


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
