"""Static word vectors as an encoder: every token has the same vector in every context, as with GloVe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Int
from torch import Tensor, nn

from bertie.base.config import AboveZero, Count, DropoutRate, Size, ranges
from bertie.base.contracts import Batch, Hidden
from bertie.model.config import EncoderFacts, PooledToken
from bertie.model.embeddings import WordEmbeddings


@dataclass(frozen=True)
class StaticConfig(EncoderFacts):
    """Sizes and settings of static word vectors."""

    num_hidden_layers: ClassVar = 0
    causal: ClassVar = True  # a token sees no other token at all
    pooled_token: ClassVar[PooledToken] = "first"  # its own vector says nothing about the text, a BiLSTM's does
    kind: Literal["static"] = field(default="static", kw_only=True)
    hidden_size: Size
    """Size of the vectors."""
    vocab_size: Count = 0
    """Number of entries of the vocabulary. 0: the size of the tokenizer's vocabulary."""
    max_position_embeddings: Size = 512
    """Maximum sequence length, in tokens."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the vectors."""
    initializer_range: AboveZero = 0.02
    """Standard deviation of the initial vectors."""

    __post_init__ = ranges("model")

    def products(self, batch: Batch, rows: np.ndarray) -> float:  # noqa: ARG002
        """Return the multiplications of a forward pass: none."""
        return 0.0


class StaticEncoder(nn.Module):
    """Word vectors without any layer above them."""

    def __init__(self, config: StaticConfig):
        super().__init__()
        self.config = config
        self.embeddings = WordEmbeddings(config.vocab_size, config.hidden_size, config.hidden_dropout_prob)
        self.layers = nn.ModuleList()

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Return the vectors of the tokens; see `TransformerEncoder.forward`."""
        x_TD = self.embeddings(batch)
        return Hidden(x_TD if rows is None else x_TD[rows], (x_TD,) if all_layers else None)
