"""Initial weights with which the first layers read the neighbors of a token. For rotary positions.

A masked word depends on the words beside it more than on anything else, and a model with random weights needs millions of
tokens to find that out. Here, a quarter of the heads of each of the first layers begins with attention to the previous
token, a quarter to the next one, and the others to wider surroundings on either side.

If queries and keys are the same for all tokens, attention with rotary positions depends on the distance d alone: pair r of
the dimensions adds a_r cos(θ_r (d − c)) to the score, which is highest at the distance c. Queries and keys are the same if
they read a dimension of the hidden states that is the same for all tokens. In word embeddings, such a dimension does not
change the predictions, since it adds the same number to all logits.

H  head size    R  pairs of dimensions of a head: H / 2
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertie.model.layers import Layer, SelfAttention
from bertie.model.positions import rotary_angles
from bertie.model.transformer import TransformerEncoder

CONSTANT = 0
"""The dimension that is the same for all tokens."""
LAYERS = 2
"""Number of layers with attention to neighbors."""


class Focus(NamedTuple):
    """Where the attention of a head is highest."""

    distance: int
    """The distance, negative to the left."""
    score: float
    """The score there. Far away it is about 0."""


FOCUSES = (Focus(-1, 6.0), Focus(1, 6.0), Focus(-3, 2.0), Focus(3, 2.0))
"""Of the heads of a layer, in turn."""
SLOWEST = 0.1  # radians per token: slower pairs do not distinguish neighbors, and amplify differences between tokens
OTHERS = 0.1  # factor of the random weights that remain in queries and keys


def attend_to_neighbors(encoder: TransformerEncoder) -> None:
    """Set queries, keys, values and outputs of the first layers in place.

    Args:
        encoder: An encoder with rotary positions. The dimension CONSTANT of its normalized embeddings should be 1.
    """
    config = encoder.config
    layers = [layer for layer in encoder.layers if isinstance(layer, Layer)]
    for number, layer in enumerate(layers[:LAYERS]):
        base = config.rotary_base if config.window(number) is None else config.local_rotary_base
        _set_queries_and_keys(layer.attention, base)
        _copy_values(layer.attention)


def _set_queries_and_keys(attention: SelfAttention, base: float) -> None:
    queries, keys, _ = attention.qkv.weight.data.chunk(3)
    head_size = len(queries) // attention.heads
    speeds = rotary_angles(torch.ones(1, dtype=torch.long), head_size, base)[0]
    for head in range(attention.heads):
        focus = FOCUSES[head % len(FOCUSES)]
        weights = torch.where(speeds > SLOWEST, speeds.sqrt(), 0.0)
        scores = focus.score * weights / weights.sum()
        length = (scores * math.sqrt(head_size)).sqrt()  # of query and key: scores are divided by the root of H
        turned = -focus.distance * speeds
        rows = slice(head * head_size, (head + 1) * head_size)
        for part, angles in ((queries, torch.zeros_like(speeds)), (keys, turned)):
            part[rows] *= OTHERS
            part[rows, CONSTANT] = torch.cat([length * angles.cos(), length * angles.sin()])


def _copy_values(attention: SelfAttention) -> None:
    """Let each head add a part of what it reads: its projection on a random subspace. The parts are orthogonal."""
    values: Tensor = attention.qkv.weight.data.chunk(3)[2]
    nn.init.orthogonal_(values)
    attention.out.weight.data.copy_(values.T)
