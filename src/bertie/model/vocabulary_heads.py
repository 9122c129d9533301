"""Heads that predict tokens: logits over the vocabulary with the matrix of the word embeddings.

Each head has a method `logits` for prediction. Its `forward(hidden, targets)` returns the `Loss`. Dimensions besides those
of `contracts`: V vocabulary entries, E size of the word embeddings. Its attribute `products` is the number of
multiplications of a prediction.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.contracts import Hidden, Loss, Targets
from bertie.model.activation import activation
from bertie.model.chunked_loss import chunked_vocabulary_loss
from bertie.model.config import HeadActivation, TransformerConfig
from bertie.model.head_facts import HeadShape
from bertie.model.losses import vocabulary_loss


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

    def __init__(self, config: TransformerConfig, word: nn.Embedding, ahead: int = 0):
        """Create the layers. ahead: positions from the row that predicts a token to the token (see `FillsMasks`)."""
        super().__init__()
        self.ahead = ahead
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
        return vocabulary_loss(self.transformed(hidden.last[targets.index]), self.matrix, self.bias, targets)

    def transformed(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P E"]:
        """Return the vectors whose products with the output matrix are the logits, except for the bias."""
        if self.dense is None or self.norm is None:
            return x_PD
        return self.norm(activation(self.act, self.dense(x_PD)))


class CausalLMHead(nn.Module):
    """GPT's head: logits over the vocabulary directly from the hidden states, with the matrix of the word embeddings."""

    def __init__(self, word: nn.Embedding):
        super().__init__()
        self.products = word.weight.numel()
        self.word = (word,)  # in a tuple, so that it is not a submodule: the encoder owns and saves it

    def logits(self, x_PD: Float[Tensor, "P D"]) -> Float[Tensor, "P V"]:
        return F.linear(x_PD, self.word[0].weight)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return chunked_vocabulary_loss(hidden.last[targets.index], self.word[0].weight, targets)
