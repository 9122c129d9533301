"""Attention whose probabilities a caller can look at.

T  packed tokens    S  sequences    L  length of the longest one    N  heads    H  head size
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from bertie.model.attention.attention import pad, padding_of, unpad
from bertie.model.attention.window import AttentionInput
from bertie.model.dropout import drop

See = Callable[[Tensor], None]
"""Receives the probabilities of a batch, [S, N, L, L]. Rows are queries, columns are keys; both are 0 past the end of a
sequence. The tensor is valid only during the call."""


def visible_attention(see: See, x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute attention by the formula in a padded grid, and show its probabilities. With `see`, this is an `Attention`.

    Every token has to be a query. On sequences of similar length it costs little more than other implementations.
    """
    padding = padding_of(x.keys, len(x.k))
    longest = padding.valid.shape[1]
    scores = pad(x.q, padding) @ pad(x.k, padding).transpose(2, 3) / math.sqrt(x.q.shape[-1])
    if (bias := x.pattern.bias(scores.shape[1], longest, longest, scores)) is not None:
        scores = scores + bias
    seen = padding.valid[:, None, None, :]
    if (near := x.pattern.visible(longest, longest, scores.device)) is not None:
        seen = seen & near
    # A finite minimum: a padded row that sees nothing becomes uniform instead of NaN, and is then set to 0.
    scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    probabilities = scores.softmax(-1) * (seen & padding.valid[:, None, :, None])
    see(probabilities)
    return unpad(drop(probabilities, x.dropout) @ pad(x.v, padding), padding)
