"""Transformer layers for inference on a CPU, with the linear layers of `linears.py`.

A batch is computed in parts of some thousand tokens, so that all results of a layer remain in the cache. oneDNN compiles its
code for each number of rows, which takes longer than a small matrix product, so this number is rounded up to one of a few
sizes. Attention needs no padding: consecutive sequences of equal length are a grid as they lie, and `infer` sorts by length.

T  tokens of a part    P  rows: T, rounded up    Q  query rows    S  sequences of a run    L  their length
N  heads    H  head size    D  hidden size
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.activation import activation
from bertie.model.attention_pattern import FULL, Pattern
from bertie.model.config import TransformerConfig
from bertie.model.positions import rotate
from bertie.predict.engines.linears import Linear

PART_TOKENS = 2048
Mix = Callable[..., Tensor]
"""Mixes values by attention: called as `F.scaled_dot_product_attention`, with `attn_mask` as the only keyword."""


class Run(NamedTuple):
    """Consecutive sequences of equal length, with equally many query rows each."""

    tokens: slice
    """Their tokens in T."""
    queries: slice
    """Their query rows in Q."""
    sequences: int
    """Number of sequences, S."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some sequences of a batch."""

    tokens: slice
    """Their tokens in the batch."""
    rows: Tensor | None
    """int64 [Q]: query rows of the last layer, counted in this part. None: all tokens."""
    runs: list[Run]
    """Runs for all layers in which every token is a query."""
    last_runs: list[Run]
    """Runs for a last layer that computes the query rows only."""


def parts_of(lengths: np.ndarray, rows: np.ndarray | None) -> Iterator[Part]:
    """Split a batch. Parts without a query row are omitted.

    Args:
        lengths: Tokens of each sequence.
        rows: Sorted query rows. None: all.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    queries = lengths if rows is None else np.searchsorted(rows, ends) - np.searchsorted(rows, starts)
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(ends, starts[first] + PART_TOKENS, side="right")))
        own = slice(first, last)
        tokens = slice(int(starts[first]), int(ends[last - 1]))
        inside = None
        if rows is not None:
            bounds = np.searchsorted(rows, [tokens.start, tokens.stop])
            inside = torch.from_numpy(rows[slice(*bounds)] - tokens.start)
        all_runs = _runs(lengths[own], lengths[own])
        if queries[own].any():
            yield Part(tokens, inside, all_runs, all_runs if rows is None else _runs(lengths[own], queries[own]))
        first = last


def _runs(lengths: np.ndarray, queries: np.ndarray) -> list[Run]:
    changes = np.flatnonzero((np.diff(lengths) != 0) | (np.diff(queries) != 0)) + 1
    bounds = [0, *changes.tolist(), len(lengths)]
    runs, token, query = [], 0, 0
    for first, last in pairwise(bounds):
        count = last - first
        next_token, next_query = token + count * int(lengths[first]), query + count * int(queries[first])
        runs.append(Run(slice(token, next_token), slice(query, next_query), count))
        token, query = next_token, next_query
    return runs


def rows_for(count: int) -> int:
    """Return the number of rows with which `count` tokens are computed."""
    step = 16 if count <= 256 else 64
    return -(-count // step) * step


def padded(x_TD: Tensor, count: int) -> Float[Tensor, "P D"]:
    """Append rows of zeros."""
    return x_TD if len(x_TD) == count else F.pad(x_TD, (0, 0, 0, count - len(x_TD)))


@dataclass(frozen=True, eq=False)
class PackedLayer:
    """One Transformer layer."""

    config: TransformerConfig
    pattern: Pattern
    qkv: Linear
    query: Linear | None
    """The query part of `qkv`, for a last layer that computes few rows. None: the layer is not the last one."""
    key_value: Linear | None
    """The other part of `qkv`."""
    out: Linear
    up: Linear
    down: Linear
    attention_norm: nn.LayerNorm | None
    """None: its input is normalized already."""
    norm: nn.LayerNorm | None
    mix: Mix = F.scaled_dot_product_attention

    def __call__(self, x_PD: Tensor, part: Part, angles: Tensor | None) -> Float[Tensor, "P D"]:
        """Return the output for all tokens."""
        pre = self.config.norm_position != "post"
        given = self._norm(self.attention_norm, x_PD) if pre else x_PD
        x_PD = self.out.add(self._mixed(given, part.runs, angles), x_PD)
        return self._rest(x_PD, pre)

    def last(self, x_PD: Tensor, part: Part, angles: Tensor | None) -> Float[Tensor, "Q D"]:
        """Return the output for the query rows."""
        rows = part.rows
        if rows is None or self.query is None or self.key_value is None or self.pattern != FULL:
            count = part.tokens.stop - part.tokens.start
            x_TD = self(x_PD, part, angles)[:count]
            return x_TD if rows is None else x_TD[rows]
        size, pre = rows_for(len(rows)), self.config.norm_position != "post"
        given = self._norm(self.attention_norm, x_PD) if pre else x_PD
        q = self.query(padded(given[rows], size)).unflatten(1, (self.config.num_attention_heads, -1))
        k, v = self.key_value(given).unflatten(1, (2, self.config.num_attention_heads, -1)).unbind(1)
        if angles is not None:
            q, k = rotate(q, padded(angles[rows], size)), rotate(k, angles)
        mixed = self._attend(q, k, v, part.last_runs)
        return self._rest(self.out.add(mixed, padded(x_PD[rows], size)), pre)[: len(rows)]

    def _mixed(self, given_PD: Tensor, runs: list[Run], angles: Tensor | None) -> Float[Tensor, "P D"]:
        q, k, v = self.qkv(given_PD).unflatten(1, (3, self.config.num_attention_heads, -1)).unbind(1)
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        return self._attend(q, k, v, runs)

    def _attend(self, q_QNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, runs: list[Run]) -> Float[Tensor, "Q D"]:
        """Return the mixed values. Rows that belong to no sequence are zeros."""
        parts = []
        for run in runs:
            if run.queries.start == run.queries.stop:
                continue
            q, k, v = (
                x[own].unflatten(0, (run.sequences, -1)).transpose(1, 2)
                for x, own in ((q_QNH, run.queries), (k_TNH, run.tokens), (v_TNH, run.tokens))
            )
            mixed = self.mix(q, k, v, attn_mask=_mask(self.pattern, q, k.shape[2]))
            parts.append(mixed.transpose(1, 2).reshape(-1, q_QNH.shape[1] * q_QNH.shape[2]))
        if (rest := len(q_QNH) - runs[-1].queries.stop) > 0:
            parts.append(parts[0].new_zeros(rest, parts[0].shape[1]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _rest(self, x_PD: Tensor, pre: bool) -> Float[Tensor, "P D"]:
        """Return the output, given the sum of attention and its residual."""
        x_PD = x_PD if pre else self._norm(self.attention_norm, x_PD)
        given = self._norm(self.norm, x_PD) if pre else x_PD
        if self.config.gated:
            inner = activation(self.config.hidden_act, self.up(given))
        else:
            inner = self.up(given, self.config.hidden_act)
        x_PD = self.down.add(inner, x_PD)
        return x_PD if pre else self._norm(self.norm, x_PD)

    @staticmethod
    def _norm(norm: nn.LayerNorm | None, x_PD: Tensor) -> Tensor:
        if norm is None:
            return x_PD
        return F.layer_norm(x_PD, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


def _mask(pattern: Pattern, q_SNLH: Tensor, keys: int) -> Tensor | None:
    """Return what to add to the attention scores, [N or 1, L, L]. None: nothing."""
    if pattern == FULL:
        return None
    bias = pattern.bias(q_SNLH.shape[1], q_SNLH.shape[2], keys, q_SNLH)
    if (seen := pattern.visible(q_SNLH.shape[2], keys, q_SNLH.device)) is None:
        return bias
    base = q_SNLH.new_zeros(1, 1, 1) if bias is None else bias
    return base.masked_fill(~seen, -torch.inf)
