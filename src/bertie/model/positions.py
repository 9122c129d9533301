"""Positions without weights: sinusoidal embeddings (Vaswani et al. 2017) and rotary ones (RoPE, Su et al. 2021).

T  packed tokens    E  embedding size    N  heads    H  head size    R  pairs of dimensions of a head: H / 2
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.model.config import TransformerConfig


class SinusoidalEmbedding(nn.Module):
    """Fixed position embeddings: sines in even dimensions, cosines in odd ones. It has no weights."""

    table: Tensor

    def __init__(self, positions: int, size: int):
        super().__init__()
        column = torch.arange(size, dtype=torch.float64)
        angles = torch.arange(positions, dtype=torch.float64)[:, None] / 10_000.0 ** (2 * (column // 2) / size)
        table = torch.where(column % 2 == 1, angles.cos(), angles.sin())
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, position_ids: Int[Tensor, " T"]) -> Float[Tensor, "T E"]:
        return self.table[position_ids]


def rotary_angles(position_ids: Int[Tensor, " T"], head_size: int, base: float) -> Float[Tensor, "T R"]:
    """Return the angle by which each pair of dimensions of a query or key is rotated, in radians, fp32.

    Pair i turns by base^(−2 i / head_size) per position.
    """
    pair = torch.arange(0, head_size, 2, device=position_ids.device)
    return position_ids[:, None] * torch.pow(base, -pair / head_size)


def layer_rotations(config: TransformerConfig, position_ids: Int[Tensor, " T"]) -> list[Tensor | None]:
    """Return the `rotation` of every layer, [T, H]. None: the model has other positions."""
    layers = range(config.num_hidden_layers)
    if config.position_embedding != "rotary":
        return [None for _ in layers]
    local = [config.window(layer) is not None for layer in layers]
    size, bases = config.hidden_size // config.num_attention_heads, (config.rotary_base, config.local_rotary_base)
    rotations = {is_local: rotation(rotary_angles(position_ids, size, bases[is_local])) for is_local in set(local)}
    return [rotations[is_local] for is_local in local]


def rotation(angles: Float[Tensor, "T R"]) -> Float[Tensor, "T H"]:
    """Return the cosines and the sines of angles, side by side."""
    return torch.cat([angles.cos(), angles.sin()], 1)


def rotate(x_TNH: Float[Tensor, "T N H"], rotation: Float[Tensor, "T H"]) -> Float[Tensor, "T N H"]:
    """Rotate the pair of dimensions (i, i + R) of every head by its angle."""
    cos, sin = rotation[:, None].to(x_TNH.dtype).chunk(2, -1)
    first, second = x_TNH.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def relative_embeddings(distances: Int[Tensor, " W"], size: int) -> Float[Tensor, "W E"]:
    """Return sinusoidal embeddings of distances, as in Transformer-XL: first all sines, then all cosines, fp32."""
    pair = torch.arange(0, size, 2, device=distances.device)
    angles = distances[:, None] * torch.pow(10_000.0, -pair / size)
    return torch.cat([angles.sin(), angles.cos()], 1)
