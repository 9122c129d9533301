"""Initial weights that are counted in the corpus, for the objectives whose output matrix is that of the word embeddings."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from bertie import console
from bertie.text.cooccurrence import cooccurrence_vectors
from bertie.text.shards import Corpus

Vectors = Literal["random", "cooccurrence"]

# Norm of co-occurrence vectors as initial embeddings, relative to random embeddings. 2 and 8 learn more slowly (docs/log).
COOCCURRENCE_NORM = 4.0


def set_cooccurrence_vectors(embeddings: nn.Embedding, corpus: Corpus) -> None:
    """Set word embeddings in place to co-occurrence vectors of the corpus. Entries that do not occur keep theirs."""
    console.info("counting co-occurrences for the initial word embeddings")
    words = embeddings.weight.data
    vectors = torch.from_numpy(cooccurrence_vectors(corpus, *words.shape))
    norms = vectors.norm(dim=1, keepdim=True)
    norm = COOCCURRENCE_NORM * words.norm(dim=1).mean()  # the same for all words: training learns the norms
    words.copy_(torch.where(norms > 0, vectors / norms * norm, words))
