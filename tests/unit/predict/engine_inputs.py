"""Encoders and batches that the tests of several engines share."""

from __future__ import annotations

import numpy as np
import torch

from bertie.base.contracts import Batch, Sequence
from bertie.batches.collate import collate
from bertie.model.config import TransformerConfig
from bertie.model.encoder import build_encoder
from bertie.model.initialization import initialize_weights
from bertie.model.transformer import TransformerEncoder

MODERN = {
    **{"position_embedding": "rotary", "hidden_act": "geglu", "norm_position": "modern", "use_bias": False},
    **{"local_attention": 4, "global_attention_every": 2},
}


def encoder_of(config: TransformerConfig, scale: float = 0.2) -> TransformerEncoder:
    torch.manual_seed(1)
    encoder = build_encoder(config)
    assert isinstance(encoder, TransformerEncoder)
    initialize_weights(encoder, scale)
    with torch.no_grad():  # biases and norms that are not 0 and 1
        for parameter in encoder.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return encoder.eval()


def batch_of(*lengths: int) -> Batch:
    rng = np.random.default_rng(3)
    sequences = [
        Sequence(rng.integers(5, 500, n).astype(np.int32), (np.arange(n) > n // 2).astype(np.int32), np.ones(n, bool))
        for n in lengths
    ]
    return collate(sequences, max(lengths)).tensors()
