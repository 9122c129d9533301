"""Fixed features of texts and pairs: the encoder's vector of each text, as in Skip-thoughts (Kiros et al. 2015, section 3.2).

T  packed tokens    S  sequences    Q  query rows    W  size of the states    R  size of the result: W, or 2 W of pairs
X  texts: S, or 2 S of pairs, where those of pair i are 2 i and 2 i + 1
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.heads import PooledHead
from bertie.model.pooled_texts import PooledRows, PoolingFacts
from bertie.model.pooling import pool


class TextVectors(nn.Module):
    """The vector of a text, u, or for a pair [|u − v|; u ∗ v], without any weights. The head is only an output layer.

    What the vector of a text is, the encoder says, as in `bertie embed`: for a GRU the last state, for others the mean of the
    states of all tokens.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(separate="texts", bilstm="none")

    def __init__(self, width: int, pairs: bool):
        """Set the sizes.

        Args:
            width: Size of the states, W.
            pairs: Whether sequences are pairs of texts.
        """
        super().__init__()
        self.parts = 2 if pairs else 1
        self.width = self.parts * width

    def connect(self, heads: Iterable[nn.Module]) -> None:
        """Leave out the dense layer of the head of texts."""
        for head in heads:
            if isinstance(head, PooledHead):
                head.leave_only_output()

    def reduce(self, x_TW: Float[Tensor, "T W"], texts: PooledRows) -> Float[Tensor, "Q R"]:
        """Return the numbers of u, or of both texts in turn: u₁, v₁, u₂, v₂ … So layers can be mixed or concatenated."""
        lengths_X = texts.read.lengths
        full_X = lengths_X > 0  # filler has no second text
        owner_T = (full_X.cumsum(0) - 1)[texts.read.owners(len(x_TW))]
        x_XW = x_TW.new_zeros(len(lengths_X), x_TW.shape[1])
        x_XW[full_X] = pool(texts.text_vector, x_TW, owner_T, int(full_X.sum()))
        return x_XW.unflatten(0, (-1, self.parts)).mT.flatten(1)[texts.sequence]

    def vectors(self, reduced: Float[Tensor, "Q R"]) -> Float[Tensor, "Q R"]:
        """Return u, or [|u − v|; u ∗ v]."""
        if self.parts == 1:
            return reduced
        u_QW, v_QW = reduced.unflatten(1, (-1, 2)).unbind(2)
        return torch.cat([(u_QW - v_QW).abs(), u_QW * v_QW], 1)
