"""Learned biases of attention scores, by the distance of the two tokens (Raffel et al. 2020, section 2.1).

q, t  queries and keys of one sequence    N  heads
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

FARTHEST = 128
"""Distance from which on all tokens have the same bias."""


class RelativeBias(nn.Module):
    """One bias per head and bucket of distances. All layers of an encoder share it."""

    def __init__(self, buckets: int, heads: int):
        super().__init__()
        self.table = nn.Embedding(buckets, heads)
        self.kept: dict[tuple[int, int], Tensor] | None = None
        """Biases by the numbers of queries and keys, in `once`."""

    @contextmanager
    def once(self) -> Iterator[None]:
        """Compute the biases for all layers once in the block, unless gradients are needed or a graph is traced."""
        self.kept = None if torch.is_grad_enabled() or torch.compiler.is_compiling() else {}
        try:
            yield
        finally:
            self.kept = None

    def forward(self, queries: int, keys: int) -> Float[Tensor, "N q t"]:
        """Return the biases of the first queries and keys of a sequence."""
        if (kept := self.kept) is None:
            return self._biases(queries, keys)
        if (queries, keys) not in kept:
            kept[queries, keys] = self._biases(queries, keys)
        return kept[queries, keys]

    def _biases(self, queries: int, keys: int) -> Float[Tensor, "N q t"]:
        device = self.table.weight.device
        ahead = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
        buckets = bucket_of(ahead, self.table.num_embeddings)
        return F.embedding(buckets, self.table.weight).permute(2, 0, 1).contiguous()


def bucket_of(ahead: Int[Tensor, "*shape"], buckets: int) -> Int[Tensor, "*shape"]:
    """Return the bucket of each distance: the first half for earlier keys, the second half for later ones.

    In each half, the first half of the buckets are one distance each. The others grow with the logarithm of the distance.

    Args:
        ahead: How far the key is after the query.
        buckets: Number of buckets, a multiple of 4.
    """
    half = buckets // 2
    exact, distance = half // 2, ahead.abs()
    grown = torch.log(distance.float() / exact) / math.log(FARTHEST / exact) * (half - exact)
    far = (exact + grown.clamp(min=0).long()).clamp(max=half - 1)  # near distances take the other branch
    return torch.where(distance < exact, distance, far) + (ahead > 0) * half
