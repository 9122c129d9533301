"""The distinct words of a batch, for a first layer whose input depends on the word alone.

A step of 2,048 tokens has a quarter as many words, and queries, keys and values are computed once for each.

T  packed tokens    U  distinct words
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from bertie.base.contracts import Batch
from bertie.model.embeddings import Embeddings, SharedEmbeddings


class DistinctWords(NamedTuple):
    """The words of a batch, in the order of their ids."""

    first: Int[Tensor, " U"]
    """The first position of each word in T."""
    number: Int[Tensor, " T"]
    """The number of each token's word in U."""


def distinct_words(embeddings: Embeddings | SharedEmbeddings, batch: Batch) -> DistinctWords | None:
    """Return the words of a batch; None: vectors depend on more, or it is on a GPU, and the host would wait for them."""
    on_cpu = batch.input_ids.device.type == "cpu"
    if not (on_cpu and isinstance(embeddings, Embeddings) and embeddings.same_for_same_words):
        return None
    _, first, number = np.unique(batch.input_ids.numpy(), return_index=True, return_inverse=True)
    return DistinctWords(torch.from_numpy(first), torch.from_numpy(number))
