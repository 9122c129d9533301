"""Masked language modeling (Devlin et al. 2018, section 3.1, task 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from bertie import console
from bertie.batches.layouts import Layout
from bertie.contracts import Batch, Targets
from bertie.errors import UsageError, require_range
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.heads import MaskedLMHead
from bertie.text.cooccurrence import cooccurrence_vectors
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer

# Norm of co-occurrence vectors as initial embeddings, relative to random embeddings. 2 and 8 learn more slowly (docs/log).
COOCCURRENCE_NORM = 4.0


@dataclass(frozen=True)
class MaskedLM:
    """Select random tokens of every sequence, replace most of them by [MASK], and predict the original tokens."""

    kind: Literal["mlm"] = "mlm"
    weight: float = 1.0
    """Weight of this loss in the total loss."""
    mlm_probability: float = 0.15
    """Share of tokens to predict, at least one per sequence. Special tokens are never selected."""
    mask_replace_prob: float = 0.8
    """Share of the selected tokens that become [MASK]."""
    random_replace_prob: float = 0.1
    """Share of the selected tokens that become a random subword. The rest remain unchanged."""
    initialization: Literal["random", "unigram", "cooccurrence"] = "random"
    """Initial weights. random: as in BERT. unigram: the output bias is the log frequency of each subword instead of 0.
    cooccurrence: the same bias, and the word embeddings (the output matrix, too) are co-occurrence vectors of the
    corpus."""

    def __post_init__(self) -> None:
        require_range("objectives.mlm", self, "weight", "mask_replace_prob", "random_replace_prob", low=0)
        require_range("objectives.mlm", self, "mlm_probability", low=0, high=1, above=True)
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise UsageError(
                "objectives.mlm: mask_replace_prob and random_replace_prob are more than 1 together: lower one of them"
            )

    def check(self, model: EncoderConfig, layout: Layout) -> None:  # noqa: ARG002
        """Raise UsageError if the model is causal."""
        if not isinstance(model, TransformerConfig):
            raise UsageError(
                f'objectives.mlm needs a Transformer, and model.kind is "{model.kind}": set it to "transformer", or train '
                'with the objective kind = "bilm"'
            )
        if model.causal:
            raise UsageError(
                "objectives.mlm predicts a token from both sides, and model.causal is true: set model.causal to false, or "
                'train with the objective kind = "clm"'
            )

    def label(self, batch: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> tuple[Batch, Targets]:
        """Corrupt a row and return the targets.

        The number of targets depends only on the row size: P = ceil(mlm_probability × T). If fewer tokens are selected, the
        remaining targets are placeholders with weight 0.

        Args:
            batch: A row of T packed tokens. It is not changed.
            tokenizer: For the ids of [MASK] and of the other special tokens.
            rng: Generator for the selection and the replacements.

        Returns:
            The corrupted batch, and the targets with the original tokens.
        """
        selected = self._select(batch, tokenizer, rng)
        capacity = math.ceil(self.mlm_probability * len(batch.input_ids))
        if len(selected) > capacity:  # many very short sequences, each with its minimum of one token
            selected = np.sort(rng.choice(selected, capacity, replace=False))
        labels = batch.input_ids[selected]

        input_ids = batch.input_ids.copy()
        draw = rng.random(len(selected))
        ordinary = np.setdiff1d(np.arange(tokenizer.size), tokenizer.special_ids)
        random_ids = rng.choice(ordinary, len(selected))
        as_random = (draw >= self.mask_replace_prob) & (draw < self.mask_replace_prob + self.random_replace_prob)
        input_ids[selected[draw < self.mask_replace_prob]] = tokenizer.mask_id
        input_ids[selected[as_random]] = random_ids[as_random]

        spare = (0, capacity - len(selected))
        weight = np.pad(np.ones(len(selected), np.float32), spare)
        return replace(batch, input_ids=input_ids), Targets(np.pad(selected, spare), np.pad(labels, spare), weight)

    def _select(self, batch: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> np.ndarray:
        """Return sorted positions in T: round(mlm_probability × n) of each sequence's n ordinary tokens, at least one."""
        positions = np.flatnonzero(~np.isin(batch.input_ids, tokenizer.special_ids))
        sequence = np.searchsorted(batch.ragged.cu_seqlens, positions, side="right") - 1
        counts = np.bincount(sequence, minlength=len(batch.pair_label))
        quota = np.maximum(1, np.rint(self.mlm_probability * counts))
        shuffled = np.lexsort((rng.random(len(positions)), sequence))
        rank = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(positions[shuffled[rank < quota[sequence]]])

    def initialize(self, head: nn.Module, corpus: Corpus) -> None:
        """Set the initial output bias and word embeddings in place, as `initialization` says.

        Args:
            head: A head from `head`, which shares the word embeddings with its encoder.
            corpus: Training text for the frequencies and co-occurrences.
        """
        if not isinstance(head, MaskedLMHead) or self.initialization == "random":
            return
        counts = torch.from_numpy(corpus.frequencies(len(head.bias)) + 1.0)
        head.bias.data.copy_((counts / counts.sum()).log())
        if self.initialization == "cooccurrence":
            console.info("counting co-occurrences for the initial word embeddings")
            words = head.word[0].weight.data
            vectors = torch.from_numpy(cooccurrence_vectors(corpus, *words.shape))
            norms = vectors.norm(dim=1, keepdim=True)
            norm = COOCCURRENCE_NORM * words.norm(dim=1).mean()  # the same for all words: training learns the norms
            words.copy_(torch.where(norms > 0, vectors / norms * norm, words))

    def head(self, config: EncoderConfig, encoder: Encoder) -> MaskedLMHead:
        """Build the head, with the encoder's word embeddings as its output matrix."""
        assert isinstance(config, TransformerConfig)
        return MaskedLMHead(config, encoder.embeddings.word)
