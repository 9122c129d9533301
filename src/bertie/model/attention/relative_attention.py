"""Attention with relative positions and segments within each packed sequence, as in XLNet.

The score of query i and key j is ((qᵢ + u)·kⱼ + (qᵢ + v)·r(i − j) + (qᵢ + w)·s(i, j)) / √H, where r depends on the distance
and s says whether both tokens are in the same segment (Dai et al. 2019, section 3.3; Yang et al. 2019, section 2.4). u, v and
w are trained, one vector of each per head. A query sees the keys whose rank is at most its limit.

    T  packed keys and values    Q  packed queries of a stream    M  queries of all streams
    S  sequences                 N  heads    H  head size         W  distances: 2 × reach
    q, t  queries and keys of the longest sequence

`relative_dense` computes all sequences at once in a padded grid. `relative_groups.py` has the implementation for CPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.attention import Padding, pad, padding_of, unpad

# Added to the scores of keys that a query must not see. In fp16 it is -inf, so a query has to see at least one key.
HIDDEN = -1e30
REACH_MULTIPLE = 16


@dataclass(frozen=True, eq=False)
class Stream:
    """Tokens for which attention is computed, and what they see."""

    ragged: Ragged
    """Boundaries of the sequences among these tokens."""
    position: Int[Tensor, " Q"]
    """Position of each token in its sequence."""
    segment: Int[Tensor, " Q"]
    """Its segment id. Only whether two are equal matters."""
    limit: Int[Tensor, " Q"]
    """Highest rank of a key that it sees."""


@dataclass(frozen=True, eq=False)
class Keys:
    """Tokens that may be seen: all tokens of the batch."""

    ragged: Ragged
    """Boundaries of the sequences."""
    segment: Int[Tensor, " T"]
    """Segment ids."""
    rank: Int[Tensor, " T"]
    """Rank of each token, from 0."""


class Terms(NamedTuple):
    """The terms of the scores, and the values."""

    q: Float[Tensor, "M N H"]
    """Queries of all streams, one stream after the other."""
    k: Float[Tensor, "T N H"]
    """Keys."""
    v: Float[Tensor, "T N H"]
    """Values."""
    distance: Float[Tensor, "W N H"]
    """r, for the distances i − j = reach, reach − 1, …, 1 − reach."""
    other: Float[Tensor, "N H"]
    """s of two segments minus s of one segment. Only this matters: a constant for all keys of a query cancels out."""
    content_bias: Float[Tensor, "N H"]
    """u."""
    position_bias: Float[Tensor, "N H"]
    """v."""
    segment_bias: Float[Tensor, "N H"]
    """w."""


class Reverse(NamedTuple):
    """Products of the keys with distances, as in DeBERTa (`disentangled.py`), and the scale that scores have with them."""

    asked: Float[Tensor, "W N H"]
    """Vectors that the keys are multiplied with, for the distances of `Terms.distance`."""
    scale: float
    """Factor of the scores, instead of 1 / √H."""


def reach_of(ragged: Ragged) -> int:
    """Return an upper bound of the distances between tokens. It is a multiple of `REACH_MULTIPLE`."""
    return -(-ragged.longest // REACH_MULTIPLE) * REACH_MULTIPLE


def relative_dense(
    terms: Terms, streams: tuple[Stream, ...], keys: Keys, dropout: float, reverse: Reverse | None = None
) -> Float[Tensor, "M N H"]:
    """Compute all sequences at once in a padded grid, with torch's kernel, on any device.

    Every query has to see at least one key.
    """
    parts = terms.q.split([len(stream.position) for stream in streams])
    return torch.cat(
        [
            _dense(terms._replace(q=part), stream, keys, dropout, reverse)
            for part, stream in zip(parts, streams, strict=True)
        ]
    )


def _dense(terms: Terms, stream: Stream, keys: Keys, dropout: float, reverse: Reverse | None) -> Float[Tensor, "Q N H"]:
    asking, known = padding_of(stream.ragged, len(stream.position)), padding_of(keys.ragged, len(keys.rank))
    scores = _position_scores(terms, stream, asking, known.valid.shape[1])
    other_QN = torch.einsum("qnh,nh->qn", terms.q + terms.segment_bias, terms.other)
    apart = stream.segment[asking.rows][:, :, None] != keys.segment[known.rows][:, None, :]
    scores = scores + pad(other_QN[:, :, None], asking) * apart[:, None].to(scores.dtype)
    scale = 1 / math.sqrt(terms.k.shape[-1])
    if reverse is not None:
        scores, scale = scores + _asked_scores(terms.k, reverse.asked, stream, asking, known), reverse.scale
    scores = scores * scale
    unseen = keys.rank[known.rows][:, None, :] > stream.limit[asking.rows][:, :, None]
    unseen = (unseen | ~known.valid[:, None, :])[:, None]
    scores = scores.masked_fill(unseen, max(HIDDEN, torch.finfo(scores.dtype).min))
    grids = pad(terms.q + terms.content_bias, asking), pad(terms.k, known), pad(terms.v, known)
    return unpad(F.scaled_dot_product_attention(*grids, attn_mask=scores, dropout_p=dropout, scale=scale), asking)


def _position_scores(terms: Terms, stream: Stream, padding: Padding, keys: int) -> Float[Tensor, "S N q t"]:
    """Return the products with the distances: of all distances, then only those between a query and its keys."""
    reach = len(terms.distance) // 2
    every_SNqW = torch.einsum("snqh,wnh->snqw", pad(terms.q + terms.position_bias, padding), terms.distance)
    first = reach - stream.position[padding.rows]  # column of the distance to the first key
    index = first[:, None, :, None] + torch.arange(keys, device=first.device)
    return every_SNqW.gather(3, index.expand(-1, every_SNqW.shape[1], -1, -1))


def _asked_scores(
    k_TNH: Tensor, asked_WNH: Tensor, stream: Stream, asking: Padding, known: Padding
) -> Float[Tensor, "S N q t"]:
    """Return the products of the keys with the distances to each query."""
    every_SNtW = torch.einsum("snth,wnh->sntw", pad(k_TNH, known), asked_WNH)
    position = stream.position[asking.rows]
    first = len(asked_WNH) // 2 - position[:, None, None, :]  # column of the distance from the first key
    index = first + torch.arange(every_SNtW.shape[2], device=first.device)[:, None]
    return every_SNtW.gather(3, index.expand(-1, every_SNtW.shape[1], -1, -1)).transpose(2, 3)
