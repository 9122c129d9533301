"""Pairs of texts without an order: both orders are read, and their vectors added (Radford et al. 2018, section 3.3, similarity).

T  packed tokens    Q  query rows    W  size of the states, and of the result
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.pooled_texts import PooledRows, PoolingFacts, as_reduced, leave_heads


class BothOrders(nn.Module):
    """The sum of the states of one token of a pair, and of the pair in the other order: swapping the texts changes nothing."""

    # Language modeling beside the task reads all states.
    facts: ClassVar[PoolingFacts] = PoolingFacts(
        separate="orders", reads_all=True, for_one_text="token", one_token=True
    )
    vectors, connect = as_reduced, leave_heads

    def __init__(self, width: int, pairs: bool):
        """Create the pooling. width: size of the states, W. pairs: whether sequences are pairs of texts, as they must be."""
        super().__init__()
        assert pairs, "a single text has one order"
        self.width = width

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q W"]:
        """Add the states of both orders: of the first tokens for a row that is the first of its sequence, else the last ones."""
        number_Q = texts.sequence
        starts, ends = texts.read.cu_seqlens[:-1], texts.read.cu_seqlens[1:] - 1
        is_first_Q = texts.rows == texts.sequences.cu_seqlens[number_Q]
        # Filler, whose rows no head of a task uses, has no second order: its first row is past the end of all tokens.
        first_Q, second_Q = (
            torch.where(is_first_Q, starts[order], ends[order]).clamp(max=len(x_TW) - 1)
            for order in (2 * number_Q, 2 * number_Q + 1)
        )
        return x_TW[first_Q] + x_TW[second_Q]
