"""The normalization of hidden states."""

from __future__ import annotations

from torch import nn

from bertie.model.config import TransformerConfig


def norm_of(config: TransformerConfig, size: int) -> nn.LayerNorm:
    """Return layer normalization of vectors of a size, as the configuration has it."""
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.use_bias or config.norm_bias)
