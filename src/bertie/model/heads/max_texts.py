"""Poolings with weights of their own: max pooling of texts and pairs, without and with attention between the texts.

These are GLUE's baselines (Wang et al. 2018, section 4) and ESIM (Chen et al. 2017), as Peters et al. 2018 used it.

T  packed tokens    S  sequences    Q  query rows    W  size of the states, and of the result
X  texts: S, or 2 S of pairs, where pair i has the texts 2 i and 2 i + 1
L  length of the longest first text    M  length of the longest second text
"""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertie.base.contracts import Ragged
from bertie.model.bilstm import BiLstm
from bertie.model.heads.pooled_texts import PoolingFacts, TextPool
from bertie.model.pooling import pool


class MaxTexts(nn.Module, TextPool):
    """The vector of each text, or of each pair of texts, by max pooling.

    For a pair, u and v are the vectors of its texts, and the result is a linear projection of [u; v; |u − v|; u ∗ v] to their
    size. With the head's dense layer and output layer after it, that is an MLP over the four parts.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(separate="texts", reads_all=True)

    def __init__(self, width: int, pairs: bool):
        """Create the trainable parts.

        Args:
            width: Size of the states, W.
            pairs: Whether sequences are pairs of texts.
        """
        super().__init__()
        self.width = width
        self.combine = nn.Linear(4 * width, width) if pairs else None

    def forward(self, x_TW: Float[Tensor, "T W"], texts: Ragged) -> Float[Tensor, "S W"]:
        """Pool the states of the tokens of each text. texts: their boundaries in T."""
        return _of_maxima(x_TW, texts, self.combine)


class AttendingTexts(nn.Module, TextPool):
    """The vector of each pair of texts that attend to each other, by max pooling.

    Each token gets the weighted mean of the other text's states, with the softmax of its dot products with them as weights. A
    second BiLSTM reads the states and these means. Its states are pooled and projected as in `MaxTexts`.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(separate="texts", reads_all=True, for_one_text="max", bilstm="needed")

    def __init__(self, width: int, pairs: bool):
        """Create the trainable parts.

        Args:
            width: Size of the states, W, which is even.
            pairs: Whether sequences are pairs of texts, as they must be.
        """
        super().__init__()
        assert pairs, "single texts do not attend to each other"
        self.width = width
        self.combine = nn.Linear(4 * width, width)
        self.lstm = BiLstm(2 * width, width // 2)

    def forward(self, x_TW: Float[Tensor, "T W"], texts: Ragged) -> Float[Tensor, "S W"]:
        """Let the texts attend to each other, and pool them. texts: their boundaries in T."""
        both_TW = torch.cat([x_TW, attended(x_TW, texts.lengths)], 1)
        return _of_maxima(self.lstm(both_TW, texts), texts, self.combine)


class EsimTexts(nn.Module, TextPool):
    """The vector of each pair of texts by inference between their tokens (Chen et al. 2017, section 3, equations 11 to 20).

    The BiLSTM below has read each text: a is the state of a token. ã is the mean of the other text's states, weighted by the
    softmax of their dot products with a. A projection with ReLU of [a; ã; a − ã; a ∗ ã] to the size of a is read by a second
    BiLSTM of the same size. The vector of a text is the mean and the maximum of its states.

    The paper's last layers are an MLP over the vectors of both texts, with one hidden layer and tanh. Here they are a projection
    to the size W, and the head's dense layer with tanh and output layer. Only the head has dropout.
    """

    facts: ClassVar[PoolingFacts] = PoolingFacts(
        separate="texts", reads_all=True, for_one_text="max", bilstm="needed", bilstm_layers=1
    )

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


def _of_maxima(x_TW: Float[Tensor, "T W"], texts: Ragged, projection: nn.Linear | None) -> Float[Tensor, "S W"]:
    """Return the maximum of each dimension over the tokens of a text. With a projection, project the four parts of pairs."""
    lengths_X = texts.lengths
    pooled_XW = pool("max", x_TW, texts.owners(len(x_TW)), len(lengths_X))
    x_XW = pooled_XW.masked_fill((lengths_X == 0)[:, None], 0)  # filler has no second text
    if projection is None:
        return x_XW
    u_SW, v_SW = x_XW[0::2], x_XW[1::2]
    return projection(torch.cat([u_SW, v_SW, (u_SW - v_SW).abs(), u_SW * v_SW], 1))


def attended(x_TW: Float[Tensor, "T W"], lengths_X: Int[Tensor, " X"]) -> Float[Tensor, "T W"]:
    """Return the mean of the other text's states for each token of a pair, weighted by the softmax of dot products."""
    lengths = lengths_X.tolist()
    parts = x_TW.split(lengths)
    u_SLW, v_SMW = (pad_sequence(list(parts[side::2]), batch_first=True) for side in (0, 1))
    past_SL, past_SM = (
        torch.arange(grid.shape[1], device=x_TW.device) >= lengths_X[side::2, None]
        for side, grid in enumerate((u_SLW, v_SMW))
    )
    scores_SLM = u_SLW @ v_SMW.mT
    lowest = torch.finfo(scores_SLM.dtype).min
    of_u_SLW = scores_SLM.masked_fill(past_SM[:, None], lowest).softmax(2) @ v_SMW
    of_v_SMW = scores_SLM.mT.masked_fill(past_SL[:, None], lowest).softmax(2) @ u_SLW
    rows = (row for pair in zip(of_u_SLW, of_v_SMW, strict=True) for row in pair)
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
