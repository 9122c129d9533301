"""Floating-point operations of a training step, for the utilization of the hardware."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bertie.base.contracts import MicroBatch
from bertie.model.encoders.electra import GENERATOR_HEAD
from bertie.model.heads.distillation import DistillationHead
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.model import Model


def model_flops(model: Model, micro: MicroBatch) -> float:
    """Return the floating-point operations of the matrix products in one forward and backward pass.

    A product of [n, k] and [k, m] takes 2·n·k·m operations, and its backward pass twice as many. Counted are:

    - all layers except the last, at T tokens, including filler (with two streams, also at Q rows);
    - in the last layer, keys and values at T tokens, and everything else at Q rows;
    - attention within each sequence, without padding;
    - logits over the vocabulary, or the sampled part of it, at the P predicted positions;
    - a CNN over characters once for each distinct token;
    - ELECTRA's generator, whose last layer runs at the masked positions, and a teacher, which has no backward pass.

    Not counted are element-wise operations, heads with a few classes, and layers that are recomputed to save memory. The
    result is 0 if the hidden states are cached.

    Args:
        model: The model. It may be on torch's meta device.
        micro: Micro-batch of NumPy arrays.
    """
    if micro.hidden_states is not None:
        return 0.0
    batch, rows = micro.batch, micro.rows
    config, depth = model.encoder.config, getattr(model.encoder, "depth", 0)
    config = replace(config, num_hidden_layers=depth) if depth else config
    products, untrained = config.products(batch, rows), 0.0
    if model.generator is not None:
        products += model.generator.config.products(batch, rows[np.unique(micro.targets[GENERATOR_HEAD].index)])
    for kind, targets in micro.targets.items():
        head, count = model.heads[kind], len(targets.label)
        products += count * getattr(head, "products", 0)
        if isinstance(head, MaskedLMHead) and head.negatives and not head.matrix.is_cuda:
            entries, size = head.matrix.shape
            products -= count * max(entries - count - head.negatives, 0) * size
        if isinstance(head, DistillationHead) and head.teacher is not None:
            untrained += head.teacher.encoder.config.products(batch, rows) + count * head.teacher.head.products
    return 6.0 * products + 2.0 * untrained
