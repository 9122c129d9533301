"""Parts of a batch for inference on a CPU, and attention within them.

A part has some thousand tokens, so that all results of a layer remain in the cache. oneDNN compiles its
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
from torch import Tensor

from bertie.model.attention.window import FULL, Pattern

PART_TOKENS = 2048
Kernel = Callable[..., Tensor]
"""Computes attention: called as `F.scaled_dot_product_attention`, with `attn_mask` as the only keyword."""


class LengthRun(NamedTuple):
    """Consecutive sequences of equal length, with equally many query rows each."""

    tokens: slice
    """Their tokens in T."""
    queries: slice
    """Their query rows in Q."""
    sequences: int
    """Number of sequences, S."""


@dataclass(frozen=True, eq=False)
class BatchPart:
    """Some sequences of a batch."""

    tokens: slice
    """Their tokens in the batch."""
    rows: Tensor | None
    """int64 [Q]: query rows of the last layer, counted in this part. None: all tokens."""
    runs: list[LengthRun]
    """Runs for all layers in which every token is a query."""
    last_runs: list[LengthRun]
    """Runs for a last layer that computes the query rows only."""


def parts_of(lengths: np.ndarray, rows: np.ndarray | None) -> Iterator[BatchPart]:
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
        sequences = slice(first, last)
        tokens = slice(int(starts[first]), int(ends[last - 1]))
        inside = None
        if rows is not None:
            bounds = np.searchsorted(rows, [tokens.start, tokens.stop])
            inside = torch.from_numpy(rows[slice(*bounds)] - tokens.start)
        all_runs = _runs(lengths[sequences], lengths[sequences])
        if queries[sequences].any():
            yield BatchPart(
                tokens, inside, all_runs, all_runs if rows is None else _runs(lengths[sequences], queries[sequences])
            )
        first = last


def _runs(lengths: np.ndarray, queries: np.ndarray) -> list[LengthRun]:
    changes = np.flatnonzero((np.diff(lengths) != 0) | (np.diff(queries) != 0)) + 1
    bounds = [0, *changes.tolist(), len(lengths)]
    runs, token, query = [], 0, 0
    for first, last in pairwise(bounds):
        count = last - first
        next_token, next_query = token + count * int(lengths[first]), query + count * int(queries[first])
        runs.append(LengthRun(slice(token, next_token), slice(query, next_query), count))
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
class PartAttention:
    """Attention within the sequences of a part, as a `Mix`. Rows that belong to no sequence are zeros."""

    part: BatchPart
    pattern: Pattern
    kernel: Kernel

    def __call__(self, q_PNH: Tensor, k_PNH: Tensor, v_PNH: Tensor, rows: Tensor | None) -> Float[Tensor, "P D"]:
        runs, mixed = self.part.runs if rows is None else self.part.last_runs, []
        for run in runs:
            if run.queries.start == run.queries.stop:
                continue
            q, k, v = (
                x[places].unflatten(0, (run.sequences, -1)).transpose(1, 2)
                for x, places in ((q_PNH, run.queries), (k_PNH, run.tokens), (v_PNH, run.tokens))
            )
            mixed_SNLH = self.kernel(q, k, v, attn_mask=_mask(self.pattern, q, k.shape[2]))
            mixed.append(mixed_SNLH.transpose(1, 2).flatten(2).flatten(0, 1))
        if (rest := len(q_PNH) - runs[-1].queries.stop) > 0:
            mixed.append(mixed[0].new_zeros(rest, mixed[0].shape[1]))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _mask(pattern: Pattern, q_SNLH: Tensor, keys: int) -> Tensor | None:
    """Return what to add to the attention scores, [N or 1, L, L]. None: nothing."""
    if pattern == FULL:
        return None
    bias = pattern.bias(q_SNLH.shape[1], q_SNLH.shape[2], keys, q_SNLH)
    if (seen := pattern.visible(q_SNLH.shape[2], keys, q_SNLH.device)) is None:
        return bias
    base = q_SNLH.new_zeros(1, 1, 1) if bias is None else bias
    return base.masked_fill(~seen, -torch.inf)
