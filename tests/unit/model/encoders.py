"""Small encoders with large weights, and batches for them."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import numpy as np
import torch

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights


def built(config: Any, spread: float = 0.5, biases: float = 0.3) -> Any:
    """Return an encoder with large weights, so that attention is far from uniform. Biases are random, too."""
    encoder = build_encoder(config)
    torch.manual_seed(0)
    initialize_weights(encoder, spread)
    for parameter in encoder.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) * biases)
    return encoder.eval()


def sequences(*ids: Many[int] | np.ndarray) -> list[Sequence]:
    """Return sequences of these ids, in segment 0."""
    return [Sequence(np.array(each, np.int32), np.zeros(len(each), np.int32), np.ones(len(each), bool)) for each in ids]


def packed(*ids: Many[int] | np.ndarray) -> Batch:
    """Return a batch of sequences of these ids."""
    return collate(sequences(*ids), 64).tensors()
