"""Heads that predict tokens: logits over the vocabulary with the matrix of the word embeddings.

Each head has a method `logits` for prediction. Its `forward(hidden, targets)` returns the `Loss`. Dimensions besides those
of `contracts`: V vocabulary entries, E size of the word embeddings. Its attribute `products` is the number of
multiplications of a prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.base.contracts import FILLER, Batch, Hidden, Loss, Targets
from bertie.model.activation import activation
from bertie.model.config import HeadActivation, TransformerConfig
from bertie.model.head_facts import HeadShape
from bertie.model.losses.chunked_loss import chunked_vocabulary_loss
from bertie.model.losses.sampled_loss import sampled_vocabulary_loss


@runtime_checkable
class FillsMasks(Protocol):
    """A head that predicts masked tokens from both sides."""

    ahead: int
    """Positions from the row that predicts a token to the token: 0, or 1 if each row predicts the next token."""
    permuted: bool
    """Whether the encoder has to know the order in which tokens are predicted (`Batch.order`)."""

    def logits(self, x_PD: Tensor, /) -> Tensor: ...


class PredictsNext(Protocol):
    """A head that predicts the next token from the left. Its facts have the shape `next`."""

    def logits(self, x_PD: Tensor, /) -> Tensor: ...


@runtime_checkable
class BringsVocabularyHead(Protocol):
    """An encoder whose head over the vocabulary has a form of its own, such as other sizes or a bias."""

    def vocabulary_head(self, shape: HeadShape) -> nn.Module:
        """Return the head, untrained: one of those in `config.vocabulary_heads`. "masked" is `FillsMasks`, "next" is
        `PredictsNext`, and both have `products` and return a `Loss`, as the heads in this file."""
        ...


class MaskedLMHead(nn.Module):
    """BERT's head for masked language modeling: dense layer, activation, layer norm, then logits over the vocabulary.

    The output matrix is the matrix of the word embeddings (tied weights). The dense layer maps to their size.
    A configuration can omit everything before that matrix, or have a matrix of its own, without a bias.
    """

    permuted = False
    bias: Tensor

    def __init__(self, config: TransformerConfig, word: nn.Embedding, ahead: int = 0, negatives: int = 0):
        """Create the layers. ahead: positions from the row that predicts a token to the token (see `FillsMasks`). negatives:
        as in `sampled_vocabulary_loss`."""
        super().__init__()
        self.ahead, self.negatives = ahead, negatives
        width, bias = config.embedding_width, config.head_layers.bias
        self.dense = nn.Linear(config.hidden_size, width, bias) if config.mlm_transform else None
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=bias) if config.mlm_transform else None
        self.out = None if config.mlm_matrix == "words" else nn.Linear(width, config.vocab_size, bias=False)
        zeros = torch.zeros(config.vocab_size)
        if self.out is None:
            self.bias = nn.Parameter(zeros)
        else:
            self.register_buffer("bias", zeros, persistent=False)
        self.act: HeadActivation = config.head_act
        self.products = word.weight.numel() + (0 if self.dense is None else self.dense.weight.numel())
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it

    @property
    def matrix(self) -> Float[Tensor, "V E"]:
        """The output matrix."""
        return (self.word[0] if self.out is None else self.out).weight

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P V"]:
        return F.linear(self.transformed(x_PD), self.matrix, self.bias)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        x_PD = self.transformed(hidden.last[targets.index])
        return sampled_vocabulary_loss(x_PD, self.matrix, targets, self.bias, self.negatives)

    def transformed(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P E"]:
        """Return the vectors whose products with the output matrix are the logits, except for the bias."""
        return x_PD if self.dense is None or self.norm is None else self.norm(activation(self.act, self.dense(x_PD)))


class VocabularyHead(nn.Module):
    """A head without layers: logits over the vocabulary directly from the hidden states.

    The output matrix is the matrix of the word embeddings, without a bias in GPT, with one in Transformer-XL and XLNet. The
    Reformer has a separate matrix.
    """

    auxiliary = False
    """Whether the head is only there in training. `Model` gives it the states of the encoder, before any pooling."""

    def __init__(
        self,
        matrix: nn.Embedding | nn.Linear,
        bias: bool = False,
        loss: Callable[..., Loss] = chunked_vocabulary_loss,
        permuted: bool | None = None,
    ):
        """Create the head.

        Args:
            matrix: The word embeddings, or a layer of its own.
            bias: Whether the logits have a bias.
            loss: `chunked_vocabulary_loss`, or `vocabulary_loss` if few tokens of a batch are predicted.
            permuted: As in `FillsMasks`. None: the head fills no masks.
        """
        super().__init__()
        self.decoder = matrix if isinstance(matrix, nn.Linear) else None
        self.bias = nn.Parameter(torch.zeros(len(matrix.weight))) if bias else None
        self.products = matrix.weight.numel()
        self.loss = loss
        self.shared = (matrix,)  # in a tuple, so that it is not a submodule: the encoder owns and saves the embeddings
        if permuted is not None:
            self.ahead, self.permuted = 0, permuted

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P V"]:
        return F.linear(x_PD, self.shared[0].weight, self.bias)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return self.loss(hidden.last[targets.index], self.shared[0].weight, targets, self.bias)


def auxiliary_head(word: nn.Embedding) -> VocabularyHead:
    """Return a head for language modeling beside a task (Radford et al. 2018, section 3.2), with the word embeddings.

    It has no weights. It is neither saved nor used after training.
    """
    head = VocabularyHead(word)
    head.auxiliary = True
    return head


def next_token_targets(batch: Batch, separate: bool = False) -> Targets:
    """Return the targets of causal language modeling, one for every token of a batch of NumPy arrays. T: its tokens.

    The label of a token is the next token. The last token of a sequence and filler weigh 0. separate: the encoder reads tokens
    of type 1 as a sequence of their own.
    """
    weight_T = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32)
    weight_T[batch.ragged.cu_seqlens[1:] - 1] = 0
    if separate:
        weight_T[:-1][np.diff(batch.token_type_ids) > 0] = 0
    return Targets(np.arange(len(batch.input_ids)), np.append(batch.input_ids[1:], 0), weight_T)
