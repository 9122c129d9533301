"""Masked language modelling (Devlin et al. 2018, section 3.1, task 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import nn

from bertie import console
from bertie.contracts import Batch, Targets
from bertie.errors import UsageError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import MaskedLMHead
from bertie.model.transformer import Encoder
from bertie.text.cooccurrence import cooccurrence_vectors
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer

# How much longer than random ones word vectors are that mean something already: 2 and 8 learn slower (LOG.md).
COOCCURRENCE_NORM = 4.0


@dataclass(frozen=True)
class MaskedLM:
    """Choose tokens of every sequence at random; most become [MASK]; predict what they were."""

    kind: Literal["mlm"] = "mlm"
    weight: float = 1.0
    """Factor of this loss in the sum."""
    mlm_probability: float = 0.15
    """Share of tokens to predict, at least one a sequence; special tokens are never chosen."""
    mask_replace_prob: float = 0.8
    """Of the chosen, how many become [MASK]."""
    random_replace_prob: float = 0.1
    """Of the chosen, how many become a random word piece; the rest stay as they are."""
    initialization: Literal["random", "unigram", "cooccurrence"] = "random"
    """What training begins with. frequencies: the output bias at the log frequency of each word piece instead of at 0.
    cooccurrences: also the word embeddings, which are the output matrix too, at vectors made by counting neighbours."""

    def __post_init__(self) -> None:
        require_range("objectives.mlm", self, "weight", "mask_replace_prob", "random_replace_prob", low=0)
        require_range("objectives.mlm", self, "mlm_probability", low=0, high=1, above=True)
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise UsageError("objectives.mlm: mask_replace_prob and random_replace_prob are more than 1 together")

    def label(self, batch: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> tuple[Batch, Targets]:
        """Corrupt a row [T] and say what was there. P = ceil(rate × T), whatever was chosen: the rest has weight 0."""
        chosen = self._choose(batch, tokenizer, rng)
        capacity = math.ceil(self.mlm_probability * len(batch.input_ids))
        if len(chosen) > capacity:  # many very short sequences, of which each wants its one
            chosen = np.sort(rng.choice(chosen, capacity, replace=False))
        labels = batch.input_ids[chosen]

        input_ids = batch.input_ids.copy()
        draw = rng.random(len(chosen))
        ordinary = np.setdiff1d(np.arange(tokenizer.size), tokenizer.special_ids)
        random_ids = rng.choice(ordinary, len(chosen))
        as_random = (draw >= self.mask_replace_prob) & (draw < self.mask_replace_prob + self.random_replace_prob)
        input_ids[chosen[draw < self.mask_replace_prob]] = tokenizer.mask_id
        input_ids[chosen[as_random]] = random_ids[as_random]

        spare = (0, capacity - len(chosen))
        weight = np.pad(np.ones(len(chosen), np.float32), spare)
        return replace(batch, input_ids=input_ids), Targets(np.pad(chosen, spare), np.pad(labels, spare), weight)

    def _choose(self, batch: Batch, tokenizer: Tokenizer, rng: np.random.Generator) -> np.ndarray:
        """Sorted positions in T: round(rate × n) of each sequence's n ordinary tokens, at least one."""
        positions = np.flatnonzero(~np.isin(batch.input_ids, tokenizer.special_ids))
        sequence = np.searchsorted(batch.ragged.cu_seqlens, positions, side="right") - 1
        counts = np.bincount(sequence, minlength=len(batch.kind))
        quota = np.maximum(1, np.rint(self.mlm_probability * counts))
        shuffled = np.lexsort((rng.random(len(positions)), sequence))
        rank = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.sort(positions[shuffled[rank < quota[sequence]]])

    def initialize(self, head: nn.Module, corpus: Corpus) -> None:
        """Set what should not start at random in a head that `head` made, and in the embeddings it is tied to."""
        if not isinstance(head, MaskedLMHead) or self.initialization == "random":
            return
        counts = torch.from_numpy(corpus.frequencies(len(head.bias)) + 1.0)
        head.bias.data.copy_((counts / counts.sum()).log())
        if self.initialization == "cooccurrence":
            console.info("counting which word pieces stand near each other, to start from")
            words = head.word[0].weight.data
            vectors = torch.from_numpy(cooccurrence_vectors(corpus, *words.shape))
            lengths = vectors.norm(dim=1, keepdim=True)
            length = (
                COOCCURRENCE_NORM * words.norm(dim=1).mean()
            )  # the same for all: what a length should say is learned
            words.copy_(torch.where(lengths > 0, vectors / lengths * length, words))

    def head(self, config: BertConfig, encoder: Encoder) -> MaskedLMHead:
        return MaskedLMHead(config, encoder.embeddings.word)
