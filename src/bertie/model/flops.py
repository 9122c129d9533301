"""Floating-point operations of the matrix products that a training step needs: what speed is measured against."""

from __future__ import annotations

import numpy as np

from bertie.contracts import MicroBatch
from bertie.model.config import BertConfig


def training_flops(config: BertConfig, micro: MicroBatch) -> float:
    """Of one forward and backward pass over a micro-batch of NumPy arrays.

    A product of [n, k] and [k, m] takes 2·n·k·m, and its backward pass twice that. Counted is what is computed: T tokens
    (filler too) in all layers but the last, there keys and values of T and the rest of Q rows; attention within each
    sequence, without padding; logits over the vocabulary at the P predicted positions. Nothing else counts: no
    element-wise work, no head over a few classes, no layer that is computed again to save memory; nothing at all where the
    encoder's states are known already.
    """
    if micro.hidden_states is not None:
        return 0.0
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    lengths = micro.batch.ragged.lengths.astype(np.float64)
    tokens, rows = lengths.sum(), len(micro.rows)
    asked = np.diff(np.searchsorted(micro.rows, micro.batch.ragged.cu_seqlens))  # of each sequence, in the last layer
    whole = tokens * (4 * width * width + 2 * width * inner) + 2 * width * (lengths**2).sum()
    last = (
        tokens * 2 * width * width
        + rows * (2 * width * width + 2 * width * inner)
        + 2 * width * (lengths * asked).sum()
    )
    predicted = len(micro.targets["mlm"].index) if "mlm" in micro.targets else 0
    head = predicted * (width * width + width * config.vocab_size)
    return 6.0 * float((layers - 1) * whole + last + head)
