"""Vectors of texts and of pairs of texts from the states of all tokens: GLUE's baselines (Wang et al. 2018, section 4).

T  packed tokens    S  sequences    W  size of the states, and of the result
X  texts: S, or 2 S of pairs, where those of pair i are 2 i and 2 i + 1
L  length of the longest first text    M  length of the longest second text
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from bertie.contracts import Batch, Ragged
from bertie.model.bilstm import BiLstm
from bertie.model.encoder import EncoderConfig
from bertie.model.pooling import pool

TextPooling = Literal["token", "mean", "late", "max", "attention"]
"""token: the state of one token. mean: the mean of all tokens. late: the mean of what the head's dense layer and its activation
make of them. max: the maximum of each dimension over the tokens; the texts
of a pair are encoded separately. attention: the tokens of each text of a pair first attend to the other text."""
TaskPooling = Literal["model", TextPooling]
"""model: as the configuration of the model says, which for BERT is token."""
SEPARATE = ("max", "attention")
"""The poolings for which the encoder reads the texts of a pair separately."""


def resolve_pooling(pooling: TaskPooling, config: EncoderConfig) -> TextPooling:
    """Return the pooling of a task with the pooling of the model in place of "model"."""
    return config.classifier_pooling if pooling == "model" else pooling


class PooledTexts(nn.Module):
    """The vector of each text, or of each pair of texts, by max pooling.

    For a pair, u and v are the vectors of its texts, and the result is a linear projection of [u; v; |u − v|; u ∗ v] to their
    size. With the head's dense layer and output layer after it, that is an MLP over the four parts.

    With attention, each token gets the weighted mean of the other text's states, with the softmax of its dot products with
    them as weights. A second BiLSTM reads the states and these means, and its states are pooled.
    """

    def __init__(self, width: int, pairs: bool, attention: bool):
        """Create the trainable parts.

        Args:
            width: Size of the states, W. With attention it must be even.
            pairs: Whether sequences are pairs of texts.
            attention: Whether the texts of a pair attend to each other.
        """
        super().__init__()
        self.combine = nn.Linear(4 * width, width) if pairs else None
        self.lstm = BiLstm(2 * width, width // 2) if attention else None

    def forward(self, x_TW: Float[Tensor, "T W"], texts: Ragged) -> Float[Tensor, "S W"]:
        """Pool the states of the tokens of each text. texts: their boundaries in T."""
        lengths_X = texts.lengths
        if self.lstm is not None:
            x_TW = self.lstm(torch.cat([x_TW, attended(x_TW, lengths_X)], 1), texts)
        pooled_XW = pool("max", x_TW, texts.owners(len(x_TW)), len(lengths_X))
        x_XW = pooled_XW.masked_fill((lengths_X == 0)[:, None], 0)  # filler has no second text
        if self.combine is None:
            return x_XW
        u_SW, v_SW = x_XW[0::2], x_XW[1::2]
        return self.combine(torch.cat([u_SW, v_SW, (u_SW - v_SW).abs(), u_SW * v_SW], 1))


def mean_of_sequences(x_TW: Float[Tensor, "T W"], ragged: Ragged) -> Float[Tensor, "S W"]:
    """Return the mean state of the tokens of each sequence, [CLS] and [SEP] included."""
    return pool("mean", x_TW, ragged.owners(len(x_TW)), len(ragged.lengths))


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


def separate_texts(batch: Batch) -> Batch:
    """Return a batch in which each text of a pair is a sequence of its own, with its own positions and in segment 0.

    Filler becomes a text and an empty one.
    """
    starts, ends = batch.ragged.cu_seqlens[:-1], batch.ragged.cu_seqlens[1:]
    segments = F.pad(batch.token_type_ids.cumsum(0), (1, 0))
    second = ends - (segments[ends] - segments[starts])
    cu_seqlens = torch.cat([torch.stack([starts, second], 1).flatten(), ends[-1:]])
    texts, tokens = Ragged(cu_seqlens, batch.ragged.max_seqlen), len(batch.input_ids)
    positions = torch.arange(tokens, device=cu_seqlens.device) - cu_seqlens[texts.owners(tokens)]
    return replace(batch, token_type_ids=torch.zeros_like(batch.token_type_ids), position_ids=positions, ragged=texts)
