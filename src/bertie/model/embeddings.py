"""The input layer: normalized sum of word, position and segment embeddings (Devlin et al. 2018, figure 2).

XLM adds language embeddings (Lample & Conneau 2019, figure 1).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch
from bertie.model.config import TransformerConfig
from bertie.model.dropout import drop
from bertie.model.normalization import norm_of
from bertie.model.positions import SinusoidalEmbedding

POSITIONS = {"learned": nn.Embedding, "sinusoidal": SinusoidalEmbedding}
"""Embeddings of positions. Other positions are none of the inputs."""


class Embeddings(nn.Module):
    """Word, position, segment and language embeddings, summed, normalized, with dropout.

    The configuration decides which of them there are. E is the embedding size; with another hidden size, a linear layer
    projects the result.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        size = config.embedding_width
        self.word = nn.Embedding(config.vocab_size, size)
        kind = POSITIONS.get(config.position_embedding)
        self.position = None if kind is None else kind(config.max_position_embeddings, size)
        self.segment = nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        self.language = nn.Embedding(len(config.languages), size) if config.language_embeddings else None
        self.language_id = config.language_id
        self.norm = norm_of(config, size) if config.norm_position != "pre" and config.embedding_norm else None
        self.project = nn.Linear(size, config.hidden_size, config.use_bias) if size != config.hidden_size else None
        self.dropout = config.hidden_dropout_prob

    @property
    def same_for_same_words(self) -> bool:
        """Whether the vector of a token depends on the word alone."""
        others = self.position, self.segment, self.language
        return not any(part is not None for part in others) and not (self.training and self.dropout)

    def forward(self, batch: Batch) -> Float[Tensor, "T D"]:
        x_TE = self.before_projection(batch)
        return x_TE if self.project is None else self.project(x_TE)

    def before_projection(self, batch: Batch) -> Float[Tensor, "T E"]:
        x_TE = self.word(batch.input_ids)
        if self.position is not None:
            x_TE = x_TE + self.position(batch.position_ids)
        if self.segment is not None:
            x_TE = x_TE + self.segment(self._segments(batch))
        if self.language is not None:
            x_TE = x_TE + self.language(self._languages(batch))
        return drop(x_TE if self.norm is None else self.norm(x_TE), self.dropout, self.training)

    def _segments(self, batch: Batch) -> Int[Tensor, " T"]:
        """Return the segment ids: 0 for every token in a model with a single segment."""
        ids = batch.token_type_ids
        return torch.zeros_like(ids) if self.segment is not None and self.segment.num_embeddings == 1 else ids

    def _languages(self, batch: Batch) -> Int[Tensor, " T"]:
        """Return the languages of the tokens: the default language, if the batch has none."""
        ids = batch.language_ids
        return torch.full_like(batch.input_ids, self.language_id) if ids is None else ids


class WordEmbeddings(nn.Module):
    """Word embeddings without positions, times a scale, with dropout."""

    def __init__(self, entries: int, size: int, dropout: float = 0.0, scale: float = 1.0):
        super().__init__()
        self.word = nn.Embedding(entries, size)
        self.dropout, self.scale = dropout, scale

    def forward(self, batch: Batch) -> Float[Tensor, "T E"]:
        x_TE = self.word(batch.input_ids)
        return drop(x_TE if self.scale == 1 else x_TE * self.scale, self.dropout, self.training)


class SharedEmbeddings(nn.Module):
    """The embeddings of another encoder, with a projection of its own to another hidden size."""

    def __init__(self, embeddings: Embeddings, config: TransformerConfig):
        super().__init__()
        self.owner = (embeddings,)  # in a tuple, so that it is not a submodule: the other encoder owns and saves it
        size = embeddings.word.embedding_dim
        self.project = nn.Linear(size, config.hidden_size, config.use_bias) if size != config.hidden_size else None

    @property
    def word(self) -> nn.Embedding:
        """The word embeddings."""
        return self.owner[0].word

    def forward(self, batch: Batch) -> Float[Tensor, "T D"]:
        x_TE = self.owner[0].before_projection(batch)
        return x_TE if self.project is None else self.project(x_TE)
