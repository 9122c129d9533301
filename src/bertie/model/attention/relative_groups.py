"""Attention with relative positions on a CPU: groups of sequences of similar length, with an explicit backward pass.

It computes what `relative_attention.py` describes. The queries of all streams of a sequence lie side by side in one grid. The
products with the distances are computed for all distances of a group. The scores of a query are a run of them, which begins at
the query's position. A view whose rows overlap makes this a copy of rows, which costs little.

    M  packed queries    T  packed keys and values    N  heads    H  head size    W  distances
    S  sequences of a group    q, t  padded queries and keys    R  queries of a head: S × q    B  N × S
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.attention.groups import (
    HALVES,
    KEY_MULTIPLE,
    MULTIPLE,
    Side,
    cells_of,
    flat_rows,
    grid_groups,
    packed,
)
from bertie.model.attention.loop import product
from bertie.model.attention.relative_attention import HIDDEN, Keys, Reverse, Stream, Terms
from bertie.model.dropout import keep_mask, keep_scale, random_lanes


def relative_grouped(
    terms: Terms, streams: tuple[Stream, ...], keys: Keys, dropout: float, reverse: Reverse | None = None
) -> Float[Tensor, "M N H"]:
    """Compute attention on a CPU (see `relative_attention.relative_dense`).

    With `reverse`, the queries are all tokens of the sequences, in their order.
    """
    plan = _plan_of(streams, keys, terms.k, dropout)
    constant = ((terms.segment_bias - terms.position_bias) * terms.other).sum(1)
    vectors = torch.stack([terms.other, terms.content_bias, terms.position_bias])
    asked = None if reverse is None else reverse.asked.flip(0)  # distances that grow with the query
    scale = 1 / math.sqrt(terms.q.shape[-1]) if reverse is None else reverse.scale
    return _Grouped.apply(*terms[:4], vectors, constant, asked, plan, scale)


class _Group(NamedTuple):
    shape: tuple[int, int, int, int]
    """N, S, q, t."""
    reach: int
    """Length of the longest sequence, without padding."""
    position: Int[Tensor, " N*R"]
    """Position of each query in its sequence."""
    hidden: Tensor | None
    """To add to the scores: `HIDDEN` where a query must not see a key, else 0, [S, q or 1, t]. None if it sees all."""
    segments: list[tuple[Float[Tensor, "S q"], Float[Tensor, "S 1 t"]]]
    """For each segment of a key but segment 0: 1 for queries in segment 0, -1 for those in this one, else 0; and 1 for keys
    in it, else 0. The sum of the products, and a constant for each query, say which keys are in another segment."""


class _Plan(NamedTuple):
    queries: Side
    keys: Side
    groups: list[_Group]
    dropout: float
    """Dropout probability of the attention weights."""


_PLANS: WeakKeyDictionary[Stream, dict[Any, _Plan]] = WeakKeyDictionary()


def _plan_of(streams: tuple[Stream, ...], keys: Keys, k_TNH: Tensor, dropout: float) -> _Plan:
    """Return the plan of a batch. It is cached as long as the first stream exists, for all layers."""
    plans, key = _PLANS.setdefault(streams[0], {}), (len(streams), k_TNH.shape[1], k_TNH.dtype, dropout)
    if key not in plans:
        plans[key] = _plan(streams, keys, *key[1:])
    return plans[key]


def _plan(streams: tuple[Stream, ...], keys: Keys, heads: int, dtype: torch.dtype, dropout: float) -> _Plan:
    k_starts, k_lengths = keys.ragged.cu_seqlens.numpy()[:-1], keys.ragged.lengths.numpy()
    sizes = [len(stream.position) for stream in streams]
    q_lengths = np.stack([stream.ragged.lengths.numpy() for stream in streams])
    q_starts = np.stack([stream.ragged.cu_seqlens.numpy()[:-1] + sum(sizes[:i]) for i, stream in enumerate(streams)])
    half = dtype in HALVES
    numbers = grid_groups(q_lengths.sum(0), k_lengths, heads, half)
    multiples = (MULTIPLE, MULTIPLE) if half else (1, KEY_MULTIPLE)
    queries = _side([_table(q_starts[:, g], q_lengths[:, g], multiples[0]) for g in numbers], sum(sizes), heads)
    known = _side([_table(k_starts[None, g], k_lengths[None, g], multiples[1]) for g in numbers], len(keys.rank), heads)
    position, segment, limit = (
        torch.cat([getattr(stream, name) for stream in streams]) for name in ("position", "segment", "limit")
    )
    groups = []
    for rows, columns, past, group in zip(queries.rows, known.rows, known.past, numbers, strict=True):
        asking, asked = segment[rows], keys.segment[columns][:, None]
        others = [number for number in asked.unique().tolist() if number]
        hidden = _hidden(limit[rows], keys.rank[columns], past)
        groups.append(
            _Group(
                shape=(heads, len(rows), rows.shape[1], columns.shape[1]),
                reach=int(k_lengths[group].max()),
                position=position[rows].flatten().repeat(heads),
                hidden=None if hidden is None else hidden.to(dtype),
                segments=[
                    ((asking == 0).to(dtype) - (asking == number).to(dtype), (asked == number).to(dtype))
                    for number in others
                ],
            )
        )
    return _Plan(queries, known, groups, dropout)


def _table(starts: np.ndarray, lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Return the packed rows of the sequences of a group, [S, q]; past the end of a sequence -1 - its first row.

    starts, lengths: of each stream and sequence, [streams, S].
    """
    parts = []
    for start, length in zip(starts[:, :, None], lengths[:, :, None], strict=True):
        column = np.arange(length.max())
        parts.append(np.where(column < length, start + column, -1 - starts[0][:, None]))
    table = np.concatenate(parts, 1)
    spare = -table.shape[1] % multiple
    return np.concatenate([table, np.repeat(-1 - starts[0][:, None], spare, 1)], 1)


def _side(tables: list[np.ndarray], count: int, heads: int) -> Side:
    """Lay the rows of all groups out in grids. count: number of packed rows.

    Cells are ordered by head, then sequence, then position: the rows of a group are [S, q], and what is past is [S, q, 1].
    """
    rows, past, spans, total = [], [], [], 0
    cells = np.full((count, heads), -1, np.int64)
    for table in tables:
        cell = total + np.arange(heads * table.size).reshape(heads, *table.shape)
        cells[table[table >= 0]] = cell[:, table >= 0].T
        rows.append(torch.from_numpy(np.where(table < 0, -1 - table, table)))
        past.append(torch.from_numpy(table < 0)[:, :, None] if (table < 0).any() else None)
        spans.append(slice(total, total + cell.size))
        total += cell.size
    cells[cells < 0] = total
    return Side(rows, past, spans, torch.from_numpy(cells.reshape(-1)), total)


def _hidden(limit: Int[Tensor, "S q"], rank: Int[Tensor, "S t"], past: Tensor | None) -> Tensor | None:
    """Return the mask of a group. past: true at keys past the end of a sequence, [S, t, 1]."""
    unseen = None if past is None else past.transpose(1, 2)
    if rank.any():
        above = rank[:, None, :] > limit[:, :, None]
        unseen = above if unseen is None else above | unseen
    return None if unseen is None else unseen * HIDDEN


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_MNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        distance_WNH: Tensor,
        vectors_3NH: Tensor,  # the difference of the segments, u, v
        constant_N: Tensor,  # (w - v)·s, so that the product of q + v with s becomes that of q + w
        asked_WNH: Tensor | None,
        plan: _Plan,
        scale: float,
    ) -> Tensor:
        other_NH, content_bias_NH, position_bias_NH = vectors_3NH
        out, dropout = cells_of(q_MNH, plan.queries), plan.dropout
        kept: list[Tensor | None] = []
        for i, group in enumerate(plan.groups):
            n, s, q, _ = group.shape
            asking, k, v = _grid(q_MNH, plan.queries, i), _grid(k_TNH, plan.keys, i), _grid(v_TNH, plan.keys, i)
            r = _distances(distance_WNH, other_NH, group)
            every = product(asking.view(n, s * q, -1) + position_bias_NH[:, None], r.transpose(1, 2), scale)
            scores = _run_of_keys(every, group)
            grid = scores.unflatten(0, (n, s))
            for sign, inside in group.segments:
                other = (every[:, :, 0] + scale * constant_N[:, None]).view(n, s, q).mul_(sign)
                grid.addcmul_(other[..., None], inside)
            if group.hidden is not None:
                grid.add_(group.hidden)
            content = (asking.view(n, s * q, -1) + content_bias_NH[:, None]).view_as(asking)
            torch.baddbmm(scores, content, k.transpose(1, 2), alpha=scale, out=scores)
            if asked_WNH is not None:
                r = _run_of_asked(asked_WNH, group).transpose(0, 1)
                every = product(k.view(n, -1, k.shape[2]), r.transpose(1, 2), scale)
                scores.add_(_run_of_queries(every, group).transpose(1, 2))
            probabilities = torch.softmax(scores, -1)
            lanes = random_lanes(probabilities.shape) if dropout else None
            used = probabilities if lanes is None else keep_mask(lanes, dropout, out=scores).mul_(probabilities)
            product(used, v, keep_scale(dropout), out[plan.queries.spans[i]].view_as(asking))
            kept += [asking, k, v, probabilities, lanes]
        ctx.save_for_backward(distance_WNH, vectors_3NH, asked_WNH, *kept)
        ctx.plan, ctx.shapes, ctx.scale = plan, (q_MNH.shape, k_TNH.shape), scale
        return packed(out, plan.queries, q_MNH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        distance_WNH, vectors_3NH, asked_WNH, *kept = ctx.saved_tensors
        other_NH, content_bias_NH, position_bias_NH = vectors_3NH
        queries, keys, groups, dropout = ctx.plan
        scale = ctx.scale
        dq, dk, dv = (cells_of(gradients[0], side) for side in (queries, keys, keys))
        exact = torch.promote_types(distance_WNH.dtype, torch.float32)  # for sums over groups
        d_distance, d_vectors = (torch.zeros_like(x, dtype=exact) for x in (distance_WNH, vectors_3NH))
        d_other, d_content_bias, d_position_bias = d_vectors
        d_constant = d_other.new_zeros(len(d_other))
        d_asked = None if asked_WNH is None else torch.zeros_like(asked_WNH, dtype=exact)
        for i, group in enumerate(groups):
            n, s, q, _ = group.shape
            asking, k, v, probabilities, lanes = kept[5 * i : 5 * i + 5]
            gradient = _grid(gradients[0], queries, i)
            if (past := queries.past[i]) is not None:  # padding has no gradient
                gradient.unflatten(0, (n, s)).masked_fill_(past, 0)
            d_own, used = product(gradient, v.transpose(1, 2), keep_scale(dropout)), probabilities
            if lanes is not None:
                mask = keep_mask(lanes, dropout, out=torch.empty_like(probabilities))
                d_own.mul_(mask)
                used = mask.mul_(probabilities)
            product(used.transpose(1, 2), gradient, keep_scale(dropout), dv[keys.spans[i]].view_as(v))
            d_scores = torch.ops.aten._softmax_backward_data(d_own, probabilities, -1, probabilities.dtype)
            rows = asking.view(n, s * q, -1)
            content = (rows + content_bias_NH[:, None]).view_as(asking)
            product(d_scores.transpose(1, 2), content, scale, dk[keys.spans[i]].view_as(k))
            if asked_WNH is not None and d_asked is not None:
                spread = _spread_over_asked(d_scores, group)
                d_k, r = dk[keys.spans[i]].view(n, -1, k.shape[2]), _run_of_asked(asked_WNH, group).transpose(0, 1)
                torch.baddbmm(d_k, spread, r, alpha=scale, out=d_k)
                d_r = product(spread.transpose(1, 2), k.view_as(d_k), scale).transpose(0, 1)
                _run_of_asked(d_asked, group).add_(d_r)
            d_each = product(d_scores, k, scale, dq[queries.spans[i]].view_as(asking)).view_as(rows)
            d_content_bias += d_each.sum(1, dtype=exact)
            spread = _spread_over_distances(d_scores, group)
            for sign, inside in group.segments:
                d_other_score = torch.bmm(d_scores, inside.transpose(1, 2).repeat(n, 1, 1))
                spread[:, :, 0] += d_other_score.view(n, s, q).mul_(sign).view(n, -1)
            if group.segments:
                d_constant += scale * spread[:, :, 0].sum(1, dtype=exact)
            d_position = product(spread, _distances(distance_WNH, other_NH, group), scale)
            d_position_bias += d_position.sum(1, dtype=exact)
            d_each.add_(d_position)
            d_r = product(spread.transpose(1, 2), rows + position_bias_NH[:, None], scale).transpose(0, 1)
            _run_of_distances(d_distance, group).add_(d_r[1:])
            d_other += d_r[0]
        of_q, of_k, of_v = (
            packed(x, side, ctx.shapes[i > 0]) for i, (x, side) in enumerate(((dq, queries), (dk, keys), (dv, keys)))
        )
        small = (d_distance, d_vectors, d_constant, d_asked)
        return of_q, of_k, of_v, *(None if x is None else x.to(distance_WNH.dtype) for x in small), None, None


def _grid(x_TNH: Tensor, side: Side, i: int) -> Float[Tensor, "B q H"]:
    """Gather the rows of group i, head by head."""
    flat, row_step, head_step = flat_rows(x_TNH)
    index = side.rows[i] * row_step + torch.arange(x_TNH.shape[1])[:, None, None] * head_step
    return flat.index_select(0, index.flatten()).view(-1, index.shape[2], x_TNH.shape[2])


def _run_of_distances(x_WNH: Tensor, group: _Group) -> Float[Tensor, "W N H"]:
    """Return the distances between a query and a key of a group: from reach - 1 to 1 - t, as a view."""
    middle = len(x_WNH) // 2
    return x_WNH[middle - group.reach + 1 : middle + group.shape[3]]


def _distances(distance_WNH: Tensor, other_NH: Tensor, group: _Group) -> Float[Tensor, "N W H"]:
    """Return the vector of the segments, then the vectors of the distances of a group. All multiply the same queries."""
    return torch.cat([other_NH[None], _run_of_distances(distance_WNH, group)]).transpose(0, 1)


def _run_of_keys(every_NRW: Float[Tensor, "N R W"], group: _Group) -> Float[Tensor, "B q t"]:
    """Select the scores of each query's keys from the scores of all distances of the group."""
    n, s, q, t = group.shape
    runs = every_NRW.view(-1).as_strided((every_NRW.numel() - t + 1, t), (1, 1))
    first = torch.arange(n * s * q) * every_NRW.shape[2] + (group.reach - group.position)
    return runs.index_select(0, first).view(n * s, q, t)


def _spread_over_distances(scores_Bqt: Float[Tensor, "B q t"], group: _Group) -> Float[Tensor, "N R W"]:
    """Return the scores at their distances, and 0 at other distances: the reverse of `_run_of_keys`."""
    n, s, q, t = group.shape
    width = group.reach + t
    between = scores_Bqt.new_empty(n * s * q + 1, width)  # zeros before every row, and after the last
    between[:, : group.reach] = 0
    between[:-1, group.reach :] = scores_Bqt.view(-1, t)
    runs = between.view(-1).as_strided((n * s * q * width, width), (1, 1))
    first = torch.arange(n * s * q) * width + group.position
    return runs.index_select(0, first).view(n, s * q, width)


def _run_of_asked(x_WNH: Tensor, group: _Group) -> Float[Tensor, "W N H"]:
    """Return the distances between a key and a query of a group: from 1 - t to q - 1, as a view."""
    middle = len(x_WNH) // 2
    return x_WNH[middle - group.shape[3] : middle + group.shape[2] - 1]


def _run_of_queries(every_NRW: Tensor, group: _Group) -> Float[Tensor, "B t q"]:
    """Select the scores of each key's queries from the scores of all distances of the group, as a view.

    The first query of the first key is at column t - 1; the next key has its first query one column before.
    """
    n, s, q, t = group.shape
    width = t + q - 1
    return every_NRW.view(-1).as_strided((n * s, t, q), (t * width, width - 1, 1), t - 1)


def _spread_over_asked(scores_Bqt: Float[Tensor, "B q t"], group: _Group) -> Float[Tensor, "N R W"]:
    """Return the scores at their distances, and 0 at other distances: the reverse of `_run_of_queries`."""
    n, s, q, t = group.shape
    spread = scores_Bqt.new_zeros(n, s * t, t + q - 1)
    _run_of_queries(spread, group).copy_(scores_Bqt.transpose(1, 2))
    return spread
