"""Disentangled attention within each packed sequence, as in DeBERTa (He et al. 2021, section 3.1).

The score of query i and key j is (qᵢ·kⱼ + qᵢ·Kr(i − j) + kⱼ·Qr(i − j)) / √(3 H). Kr and Qr are keys and queries of embedded
distances, with the projections of the layer. Far distances may share an embedding (He et al. 2023, v2 and v3).

T  packed tokens    W  distances: 2 × reach    D  hidden size    N  heads    H  head size
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Ragged
from bertie.model.attention.relative_attention import Keys, Reverse, Stream, Terms, relative_dense
from bertie.model.attention.relative_groups import relative_grouped
from bertie.model.config import TransformerConfig
from bertie.model.dropout import drop


class Distances(nn.Module):
    """Embeddings of distances, which all layers share."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.farthest, self.buckets = config.disentangled_distances, config.disentangled_buckets
        self.span = self.buckets or self.farthest
        self.table = nn.Embedding(2 * self.span, config.hidden_size)
        norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.norm = norm if config.disentangled_norm else None
        self.dropout = config.hidden_dropout_prob

    def forward(self, reach: int) -> Float[Tensor, "W D"]:
        """Return the embeddings of the distances i − j = reach, reach − 1, …, 1 − reach."""
        distances = torch.arange(reach, -reach, -1, device=self.table.weight.device)
        if self.buckets:
            distances = bucket_of(distances, self.buckets, self.farthest)
        rows_WD = self.table((distances + self.span).clamp(0, 2 * self.span - 1))
        return drop(rows_WD if self.norm is None else self.norm(rows_WD), self.dropout, self.training)


def bucket_of(distance: Int[Tensor, " W"], buckets: int, farthest: int) -> Int[Tensor, " W"]:
    """Return the bucket of each distance, with its sign: up to buckets / 2 the distance, then growing with its logarithm.

    farthest: the distance whose bucket is the last one.
    """
    middle = buckets // 2
    size = distance.abs().clamp(min=middle).float()
    # In fp32, as the authors' code, so that a distance at a limit has the same bucket.
    growth = torch.log(size / middle) / torch.log(torch.tensor((farthest - 1) / middle, device=size.device))
    grown = torch.ceil(growth * (middle - 1)).long() + middle
    return torch.where(distance.abs() <= middle, distance, grown * distance.sign())


def disentangled(
    q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, asked_WD: Tensor, seen_WD: Tensor, ragged: Ragged, dropout: float
) -> Float[Tensor, "T N H"]:
    """Compute attention. Every token is a query.

    Args:
        q_TNH: Queries.
        k_TNH: Keys.
        v_TNH: Values.
        asked_WD: Qr, for the distances of `Distances`.
        seen_WD: Kr.
        ragged: Boundaries of the sequences.
        dropout: Dropout probability of the attention weights.
    """
    heads, size = q_TNH.shape[1:]
    stream, keys = _tokens(ragged, len(q_TNH))
    none_NH = q_TNH.new_zeros(heads, size)
    seen_WNH, asked_WNH = (x.unflatten(1, (heads, size)) for x in (seen_WD, asked_WD))
    terms = Terms(q_TNH, k_TNH, v_TNH, seen_WNH, none_NH, none_NH, none_NH, none_NH)
    attend = relative_grouped if q_TNH.device.type == "cpu" else relative_dense
    return attend(terms, (stream,), keys, dropout, Reverse(asked_WNH, 1 / math.sqrt(3 * size)))


_TOKENS: WeakKeyDictionary[Ragged, tuple[Stream, Keys]] = WeakKeyDictionary()


def _tokens(ragged: Ragged, count: int) -> tuple[Stream, Keys]:
    """Return all tokens as queries and as keys, the same objects as long as the batch exists."""
    if ragged not in _TOKENS:
        copied = Ragged(ragged.cu_seqlens, ragged.max_seqlen)  # not `ragged`, which would then live forever
        tokens = torch.arange(count, device=copied.cu_seqlens.device)
        position = tokens - copied.cu_seqlens[:-1].long()[copied.owners(count)]
        zeros = torch.zeros_like(tokens)
        _TOKENS[ragged] = Stream(copied, position, zeros, zeros), Keys(copied, zeros, zeros)
    return _TOKENS[ragged]
