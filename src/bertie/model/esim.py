"""Attention between two texts on features, with a second BiLSTM: ESIM (Chen et al. 2017), as Peters et al. 2018 used it.

T  packed tokens    S  sequences    Q  query rows    W  size of the states, and of the result
X  texts: 2 S, where those of pair i are 2 i and 2 i + 1
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.contracts import Ragged
from bertie.model.bilstm import BiLstm
from bertie.model.max_texts import attended
from bertie.model.pooled_texts import PoolingFacts, as_reduced, leave_heads, of_texts
from bertie.model.pooling import pool


class EsimTexts(nn.Module):
    """The vector of each pair of texts by inference between their tokens (Chen et al. 2017, section 3, equations 11 to 20).

    The BiLSTM below has read each text: a is the state of a token. ã is the mean of the other text's states, weighted by the
    softmax of their dot products with a. A projection with ReLU of [a; ã; a − ã; a ∗ ã] to the size of a is read by a second
    BiLSTM of the same size. The vector of a text is the mean and the maximum of its states.

    The paper's last layers are an MLP over the vectors of both texts, with one hidden layer and tanh. Here they are a projection
    to the size W, and the head's dense layer with tanh and output layer. Dropout is that of the head only.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(
        separate="texts", reads_all=True, for_one_text="max", bilstm="needed", bilstm_layers=1
    )
    reduce, vectors, connect = of_texts, as_reduced, leave_heads

    def __init__(self, width: int, pairs: bool):
        """Create the trainable parts.

        Args:
            width: Size of the states, W, which is even.
            pairs: Whether sequences are pairs of texts, as they must be.
        """
        super().__init__()
        assert pairs, "a single text has no other to be compared with"
        self.width = width
        self.projection = nn.Linear(4 * width, width)
        self.lstm = BiLstm(width, width // 2)
        self.combine = nn.Linear(4 * width, width)

    def forward(self, a_TW: Float[Tensor, "T W"], texts: Ragged) -> Float[Tensor, "S W"]:
        """Compare the tokens of both texts, and pool them. texts: their boundaries in T."""
        lengths_X = texts.lengths
        other_TW = attended(a_TW, lengths_X)
        compared_TW = self.projection(torch.cat([a_TW, other_TW, a_TW - other_TW, a_TW * other_TW], 1)).relu()
        x_TW = self.lstm(compared_TW, texts)
        owner_T, empty_X1 = texts.owners(len(x_TW)), (lengths_X == 0)[:, None]  # filler has no second text
        pooled = [pool(kind, x_TW, owner_T, len(lengths_X)).masked_fill(empty_X1, 0) for kind in ("mean", "max")]
        return self.combine(torch.cat(pooled, 1).unflatten(0, (-1, 2)).flatten(1))
