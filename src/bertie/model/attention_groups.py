"""Attention on a CPU for short sequences, in groups of similar length, with an explicit backward pass.

For short sequences, one call per sequence (`attention_loop.py`) costs more time than the computation itself, and has too
little work for several cores. So a group of sequences is gathered from the packed rows into a padded grid. Little of the grid
is padding, because the lengths in a group are similar.

    Q  packed queries    T  packed keys and values    N  heads    H  head size
    S  sequences of a group    q, t  queries and keys of the longest one    B  = S × N
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.contracts import Ragged
from bertie.model.attention_loop import product
from bertie.model.attention_window import AttentionInput
from bertie.model.dropout import random_lanes, scaled_mask

P = TypeVar("P")
# Maximum number of attention weights of a group, so that they remain in the cache. A single sequence may exceed it.
MAX_GROUP_WEIGHTS = 1 << 19
# The number of keys is padded to a multiple of this: fewer different shapes, and rows that fill vector registers.
KEY_MULTIPLE = 8
# Minimum length of a group's shortest sequence, relative to its longest.
MIN_LENGTH_RATIO = 0.75


def grouped(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute attention for groups of sequences with similar lengths (see `attention.Attention`)."""
    plan = planned(_plan, x)
    return _Grouped.apply(x.q, x.k, x.v, plan, x.dropout, x.pattern.bias(x.q.shape[1], *plan.most, x.q))


class Side(NamedTuple):
    """Queries, or keys, in the grids of all groups. Cells are ordered by sequence, then head, then position."""

    rows: list[Tensor]
    """For each group: packed row of each position, [S, 1, q]. Past the end of a sequence, it is the sequence's first row."""
    past: list[Tensor | None]
    """For each group: true at positions past the end of a sequence, [S, 1, q, 1]. None if there are none."""
    spans: list[slice]
    """For each group: its cells among the cells of all groups."""
    cells: Int[Tensor, " Q*N"]
    """For each packed row and head: its cell. Rows that are in no group have the cell after the last one."""
    total: int
    """Number of cells of all groups."""


class _Plan(NamedTuple):
    queries: Side
    keys: Side
    shapes: list[tuple[int, int, int]]
    """For each group: B, q, t."""
    hidden: list[Bool[Tensor, "B q t"] | Bool[Tensor, "B 1 t"] | None]
    """For each group: true where a query must not attend to a key. None if it attends to all."""
    most: tuple[int, int]
    """Highest q and t of all groups."""


_PLANS: WeakKeyDictionary[Ragged, dict[Any, Any]] = WeakKeyDictionary()


def planned(make: Callable[[AttentionInput], P], x: AttentionInput) -> P:
    """Return the plan of a batch. If every token is a query, it is cached as long as the batch exists, for all layers."""
    if x.queries is not x.keys:
        return make(x)
    plans, key = _PLANS.setdefault(x.keys, {}), (make, x.q.shape[1], x.q.dtype, x.pattern)
    if key not in plans:
        plans[key] = make(x)
    return plans[key]


def _plan(x: AttentionInput) -> _Plan:
    heads, q_lengths, k_lengths, pattern = x.q.shape[1], x.queries.lengths.numpy(), x.keys.lengths.numpy(), x.pattern
    groups = grid_groups(q_lengths, k_lengths, heads)
    queries = grid_side(x.queries.cu_seqlens.numpy(), q_lengths, groups, heads, 1)
    keys = grid_side(x.keys.cu_seqlens.numpy(), k_lengths, groups, heads, KEY_MULTIPLE)
    shapes, hidden = [], []
    for rows, columns, past in zip(queries.rows, keys.rows, keys.past, strict=True):
        shape = (len(rows) * heads, rows.shape[2], columns.shape[2])
        near = pattern.visible(shape[1], shape[2], rows.device)
        unseen = None if past is None else past.transpose(2, 3)
        if near is not None:
            unseen = ~near if unseen is None else unseen | ~near
        if unseen is not None:
            unseen = unseen.expand(len(rows), heads, -1, shape[2]).flatten(0, 1)
        shapes.append(shape)
        hidden.append(unseen)
    return _Plan(queries, keys, shapes, hidden, most(shapes))


def most(shapes: list[tuple[int, int, int]]) -> tuple[int, int]:
    """Return the highest number of queries and of keys of all groups."""
    return max((shape[1] for shape in shapes), default=0), max((shape[2] for shape in shapes), default=0)


def grid_groups(queries: np.ndarray, keys: np.ndarray, heads: int) -> list[np.ndarray]:
    """Return the sequence numbers of each group, the longest first. Sequences without queries are in no group."""
    queried = np.flatnonzero(queries)
    order = queried[np.lexsort((-queries[queried], -keys[queried]))]
    groups: list[list[int]] = []
    longest, most_queries = 0, 0
    for i in order.tolist():
        most_queries = max(most_queries, int(queries[i]))
        weights = (len(groups[-1]) + 1) * heads * most_queries * longest if groups else 0
        if not groups or keys[i] < MIN_LENGTH_RATIO * longest - KEY_MULTIPLE or weights > MAX_GROUP_WEIGHTS:
            groups.append([])
            longest, most_queries = int(keys[i]), int(queries[i])
        groups[-1].append(i)
    return [np.array(group) for group in groups]


def grid_side(starts: np.ndarray, lengths: np.ndarray, groups: list[np.ndarray], heads: int, multiple: int) -> Side:
    rows, past, spans, total = [], [], [], 0
    cells = np.full((int(starts[-1]), heads), -1, np.int32)
    for group in groups:
        own = lengths[group][:, None]
        size = -(-int(own.max()) // multiple) * multiple
        position, start = np.arange(size, dtype=np.int32), starts[group][:, None].astype(np.int32)
        beyond = position >= own  # [S, size]
        row = start + np.where(beyond, np.int32(0), position)
        first = total + size * np.arange(len(group) * heads, dtype=np.int32).reshape(len(group), heads, 1)
        cell = (first + position).transpose(0, 2, 1)  # [S, size, N]
        cells[row[~beyond]] = cell[~beyond]
        rows.append(torch.from_numpy(row)[:, None])
        past.append(torch.from_numpy(beyond)[:, None, :, None] if beyond.any() else None)
        spans.append(slice(total, total + cell.size))
        total += cell.size
    cells[cells < 0] = total
    return Side(rows, past, spans, torch.from_numpy(cells.reshape(-1)), total)


class _Grouped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_QNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        plan: _Plan,
        dropout: float,
        bias: Tensor | None,  # [N, q, t] of the longest sequence: to add to the scores
    ) -> Tensor:
        out, scale = cells_of(q_QNH, plan.queries), 1 / math.sqrt(q_QNH.shape[-1])
        kept: list[Tensor | None] = []
        for i, shape in enumerate(plan.shapes):
            q, k, v = _grid(q_QNH, plan.queries, i), _grid(k_TNH, plan.keys, i), _grid(v_TNH, plan.keys, i)
            scores = product(q, k.transpose(1, 2), scale)
            if bias is not None:
                scores.unflatten(0, (-1, len(bias))).add_(bias[:, : shape[1], : shape[2]])
            if (hidden := plan.hidden[i]) is not None:
                scores.masked_fill_(hidden, torch.finfo(scores.dtype).min)
            own = torch.softmax(scores, -1)
            lanes = random_lanes(torch.Size(shape)) if dropout else None
            used = own if lanes is None else scaled_mask(lanes, dropout, scores).mul_(own)
            torch.bmm(used, v, out=out[plan.queries.spans[i]].view(shape[0], shape[1], -1))
            kept += [own, lanes]
        ctx.save_for_backward(q_QNH, k_TNH, v_TNH, *kept)
        ctx.plan, ctx.dropout, ctx.bias = plan, dropout, None if bias is None else bias.shape
        return packed(out, plan.queries, q_QNH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q_QNH, k_TNH, v_TNH, *kept = ctx.saved_tensors
        plan, scale = ctx.plan, 1 / math.sqrt(q_QNH.shape[-1])
        dq, dk, dv = (cells_of(x, side) for x, side in ((q_QNH, plan.queries), (k_TNH, plan.keys), (v_TNH, plan.keys)))
        d_bias = q_QNH.new_zeros(ctx.bias) if ctx.needs_input_grad[5] else None
        for i, (shape, own, lanes) in enumerate(zip(plan.shapes, kept[::2], kept[1::2], strict=True)):
            q, k, v = _grid(q_QNH, plan.queries, i), _grid(k_TNH, plan.keys, i), _grid(v_TNH, plan.keys, i)
            gradient = _grid(gradients[0], plan.queries, i)
            if (past := plan.queries.past[i]) is not None:  # padding has no gradient
                gradient.unflatten(0, (len(past), -1)).masked_fill_(past, 0)
            d_own, used = torch.bmm(gradient, v.transpose(1, 2)), own
            if lanes is not None:
                mask = scaled_mask(lanes, ctx.dropout, own)
                d_own.mul_(mask)
                used = mask.mul_(own)
            queries, keys = plan.queries.spans[i], plan.keys.spans[i]
            torch.bmm(used.transpose(1, 2), gradient, out=dv[keys].view(shape[0], shape[2], -1))
            d_scores = torch.ops.aten._softmax_backward_data(d_own, own, -1, own.dtype)
            if d_bias is not None:
                d_bias[:, : shape[1], : shape[2]] += d_scores.unflatten(0, (-1, len(d_bias))).sum(0)
            product(d_scores, k, scale, dq[queries].view(shape[0], shape[1], -1))
            product(d_scores.transpose(1, 2), q, scale, dk[keys].view(shape[0], shape[2], -1))
        dk, dv = (packed(cells, plan.keys, k_TNH.shape) for cells in (dk, dv))
        return packed(dq, plan.queries, q_QNH.shape), dk, dv, None, None, d_bias


def _grid(x_TNH: Tensor, side: Side, i: int) -> Float[Tensor, "B q H"]:
    """Gather the rows of group i, head by head, directly from a tensor that need not be contiguous."""
    flat, row_step, head_step = flat_rows(x_TNH)
    rows = side.rows[i] * row_step + torch.arange(x_TNH.shape[1])[:, None] * head_step
    return flat.index_select(0, rows.flatten()).view(-1, rows.shape[2], x_TNH.shape[2])


def flat_rows(x_TNH: Tensor) -> tuple[Float[Tensor, "rows H"], int, int]:
    """Return the vectors of all heads as one matrix, and the steps in it from a token and from a head to the next."""
    heads, size = x_TNH.shape[1:]
    if x_TNH.stride(2) != 1 or x_TNH.stride(0) % size or x_TNH.stride(1) % size:
        x_TNH = x_TNH.contiguous()
    row_step, head_step = x_TNH.stride(0) // size, x_TNH.stride(1) // size
    flat = x_TNH.as_strided(((len(x_TNH) - 1) * row_step + (heads - 1) * head_step + 1, size), (size, 1))
    return flat, row_step, head_step


def cells_of(x_TNH: Tensor, side: Side) -> Float[Tensor, "cells H"]:
    """Allocate the cells of all groups, and a cell of zeros after the last one."""
    cells = x_TNH.new_empty(side.total + 1, x_TNH.shape[-1])
    cells[-1].zero_()
    return cells


def packed(cells: Tensor, side: Side, shape: torch.Size) -> Float[Tensor, "Q N H"]:
    return cells.index_select(0, side.cells).view(shape)
