"""Attention on a CPU in groups of sequences of similar length, with an explicit backward pass: short ones, or half precision.

For short sequences, one call per sequence (`loop.py`) costs more time than the computation itself, and has too
little work for several cores. So a group of sequences is gathered from the packed rows into a padded grid. Little of the grid
is padding, because the lengths in a group are similar.

In half precision, oneDNN compiles a matrix product for each new shape and keeps the compiled code. To limit the number of
shapes, queries and keys are then padded to a multiple of `MULTIPLE`, and the number of sequences in a group is a power of two.
The softmax is computed in fp32 and rounded. The matrix products apply the scale of dropout in fp32, because rounding it to
bf16 would change it by 0.2 %.

    Q  packed queries    T  packed keys and values    N  heads    H  head size
    S  sequences of a group    q, t  padded queries and keys    B  = S × N
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.base.contracts import Ragged
from bertie.model.activation import powers_of_two
from bertie.model.attention.loop import product
from bertie.model.attention.window import AttentionInput, QueryBlock
from bertie.model.dropout import keep_mask, keep_scale, random_lanes

HALVES = (torch.bfloat16, torch.float16)
# Maximum number of attention weights of a group, so that they remain in the cache. A single sequence may exceed it.
MAX_GROUP_WEIGHTS = 1 << 19
# The number of keys is padded to a multiple of this: fewer different shapes, and rows that fill vector registers.
KEY_MULTIPLE = 8
# The same for queries and keys in half precision.
MULTIPLE = 16
# Minimum length of a group's shortest sequence, relative to its longest.
MIN_LENGTH_RATIO = 0.75
# Added to the scores of keys that a query must not attend to. In fp16 it is -inf.
HIDDEN = -1e30


def grouped(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute attention for groups of sequences with similar lengths (see `attention.Attention`)."""
    plan = _plan_of(x)
    queries, keys = (max((shape[i] for shape in plan.shapes), default=0) for i in (1, 2))
    return _Grouped.apply(x.q, x.k, x.v, plan, x.dropout, x.pattern.bias(x.q.shape[1], queries, keys, x.q))


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


@dataclass(frozen=True, eq=False)
class _Plan:
    queries: Side
    keys: Side
    half: bool
    """Whether it is for half precision."""
    shapes: list[tuple[int, int, int]]
    """For each group: B, q, t."""
    blocks: list[list[QueryBlock]]
    """For each group: blocks of queries with the keys that they need. In fp32 a single one."""
    hidden: list[Tensor | None]
    """For each group: mask to add to the scores, `HIDDEN` or 0, [B or 1, q or 1, t]. None if every query attends to every
    key."""
    indices: dict[tuple[int, int, int, int], Tensor] = field(default_factory=dict)
    """Cache of the indices that `_grid` gathers, by group, side, and the strides of a row and of a head."""


_PLANS: WeakKeyDictionary[Ragged, dict[Any, _Plan]] = WeakKeyDictionary()


def _plan_of(x: AttentionInput) -> _Plan:
    """Return the plan of a batch. If every token is a query, it is cached as long as the batch exists, for all layers."""
    if x.queries is not x.keys:
        return _plan(x)
    plans, key = _PLANS.setdefault(x.keys, {}), (x.q.shape[1], x.q.dtype, x.pattern)
    if key not in plans:
        plans[key] = _plan(x)
    return plans[key]


def _plan(x: AttentionInput) -> _Plan:
    heads, dtype, pattern, half = x.q.shape[1], x.q.dtype, x.pattern, x.q.dtype in HALVES
    q_lengths, k_lengths = x.queries.lengths.numpy(), x.keys.lengths.numpy()
    groups = grid_groups(q_lengths, k_lengths, heads, half)
    queries = _side(x.queries.cu_seqlens.numpy(), q_lengths, groups, heads, MULTIPLE if half else 1)
    keys = _side(x.keys.cu_seqlens.numpy(), k_lengths, groups, heads, MULTIPLE if half else KEY_MULTIPLE)
    shapes, blocks, hidden = [], [], []
    for rows, columns, no_query, no_key in zip(queries.rows, keys.rows, queries.past, keys.past, strict=True):
        shape = (len(rows) * heads, rows.shape[2], columns.shape[2])
        near = pattern.visible(shape[1], shape[2], rows.device)
        # In a causal pattern, padding comes after every key that a query attends to.
        unseen = None if no_key is None or pattern.causal else no_key.transpose(2, 3)
        if near is not None:
            unseen = ~near[None] if unseen is None else unseen | ~near
        if unseen is not None and unseen.ndim == 4:
            if no_query is not None and near is not None:
                unseen = unseen & ~no_query  # its window may hold no key: the softmax of -inf alone is NaN
            unseen = unseen.expand(len(rows), heads, -1, shape[2]).flatten(0, 1)
        shapes.append(shape)
        whole = QueryBlock(slice(shape[1]), slice(shape[2]), slice(shape[2]))
        blocks.append(pattern.blocks(*shape[1:]) if half else [whole])
        hidden.append(None if unseen is None else unseen.to(dtype).mul_(HIDDEN))
    return _Plan(queries, keys, half, shapes, blocks, hidden)


def grid_groups(queries: np.ndarray, keys: np.ndarray, heads: int, half: bool) -> list[np.ndarray]:
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
    return [
        np.array(group[part]) for group in groups for part in (powers_of_two(len(group)) if half else [slice(None)])
    ]


def _side(starts: np.ndarray, lengths: np.ndarray, groups: list[np.ndarray], heads: int, multiple: int) -> Side:
    rows, past, spans, total = [], [], [], 0
    cells = np.full((int(starts[-1]), heads), -1, np.int32)
    for group in groups:
        group_lengths = lengths[group][:, None]
        size = -(-int(group_lengths.max()) // multiple) * multiple
        position, start = np.arange(size, dtype=np.int32), starts[group][:, None].astype(np.int32)
        beyond = position >= group_lengths  # [S, size]
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
            q, k, v = _grid(q_QNH, plan, i, 0), _grid(k_TNH, plan, i, 1), _grid(v_TNH, plan, i, 1)
            mixed = out[plan.queries.spans[i]].view(shape[0], shape[1], -1)
            kept += [q, k, v]
            for block in plan.blocks[i]:
                scores = product(q[:, block.queries], k[:, block.keys].transpose(1, 2), scale)
                if bias is not None:
                    scores.unflatten(0, (-1, len(bias))).add_(bias[:, block.queries, block.keys])
                if (hidden := plan.hidden[i]) is not None:
                    unseen = hidden[:, block.queries if hidden.shape[1] > 1 else slice(None), block.masked]
                    scores[:, :, -unseen.shape[2] :].add_(unseen)
                probabilities = torch.softmax(scores, -1)
                lanes = random_lanes(probabilities.shape) if dropout else None
                used = probabilities if lanes is None else _mask(lanes, dropout, plan, scores).mul_(probabilities)
                product(used, v[:, block.keys], _factor(dropout, plan), mixed[:, block.queries])
                kept += [probabilities, lanes]
        ctx.save_for_backward(*kept)
        ctx.plan, ctx.dropout, ctx.shape, ctx.bias = plan, dropout, k_TNH.shape, None if bias is None else bias.shape
        return packed(out, plan.queries, q_QNH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        plan, kept, scale = ctx.plan, iter(ctx.saved_tensors), 1 / math.sqrt(gradients[0].shape[-1])
        factor, exact = _factor(ctx.dropout, plan), torch.promote_types(gradients[0].dtype, torch.float32)
        dq, dk, dv = (cells_of(gradients[0], side) for side in (plan.queries, plan.keys, plan.keys))
        d_bias = dq.new_zeros(ctx.bias, dtype=exact) if ctx.needs_input_grad[5] else None
        for i, shape in enumerate(plan.shapes):
            q, k, v = next(kept), next(kept), next(kept)
            gradient = _grid(gradients[0], plan, i, 0)
            if (past := plan.queries.past[i]) is not None:  # padding has no gradient
                gradient.unflatten(0, (len(past), -1)).masked_fill_(past, 0)
            of_keys = [x[plan.keys.spans[i]].view(shape[0], shape[2], -1) for x in (dk, dv)]
            # The blocks add to the gradients of the same keys: in fp32, to round each sum once.
            several = len(plan.blocks[i]) > 1
            sums = [torch.zeros_like(x, dtype=exact) for x in of_keys] if several else of_keys
            for block in plan.blocks[i]:
                probabilities, lanes = next(kept), next(kept)
                own_q, own_k, own_v = q[:, block.queries], k[:, block.keys], v[:, block.keys]
                own_gradient = gradient[:, block.queries]
                d_own, used = product(own_gradient, own_v.transpose(1, 2), factor), probabilities
                if lanes is not None:
                    mask = _mask(lanes, ctx.dropout, plan, torch.empty_like(probabilities))
                    d_own.mul_(mask)
                    used = mask.mul_(probabilities)
                d_scores = torch.ops.aten._softmax_backward_data(d_own, probabilities, -1, probabilities.dtype)
                if d_bias is not None:
                    summed = d_scores.unflatten(0, (-1, len(d_bias))).sum(0, dtype=exact)
                    d_bias[:, block.queries, block.keys] += summed
                of_queries = dq[plan.queries.spans[i]].view(shape[0], shape[1], -1)
                product(d_scores, own_k, scale, of_queries[:, block.queries])
                for total, (left, right, by) in zip(
                    sums, ((d_scores, own_q, scale), (used, own_gradient, factor)), strict=True
                ):
                    if several:
                        total[:, block.keys] += product(left.transpose(1, 2), right, by)
                    else:
                        product(left.transpose(1, 2), right, by, total)
            if several:
                for x, total in zip(of_keys, sums, strict=True):
                    x.copy_(total)
        dk, dv = (packed(cells, plan.keys, ctx.shape) for cells in (dk, dv))
        d_bias = None if d_bias is None else d_bias.to(dq.dtype)
        return packed(dq, plan.queries, gradients[0].shape), dk, dv, None, None, d_bias


def _mask(lanes: Tensor, dropout: float, plan: _Plan, out: Tensor) -> Tensor:
    """Write 0 for dropped weights to `out`, and for others 1, or in fp32 the scale of dropout, and return it."""
    mask = keep_mask(lanes, dropout, out=out)
    return mask if plan.half else mask.mul_(keep_scale(dropout))


def _factor(dropout: float, plan: _Plan) -> float:
    """Return the factor of products with the weights: the scale of dropout, if `_mask` leaves it out."""
    return keep_scale(dropout) if plan.half else 1.0


def _grid(x_TNH: Tensor, plan: _Plan, i: int, side: int) -> Float[Tensor, "B q H"]:
    """Gather the rows of group i, head by head, directly from a tensor that need not be contiguous.

    side: 0 for queries, 1 for keys.
    """
    flat, apart, step = flat_rows(x_TNH)
    if (index := plan.indices.get((i, side, apart, step))) is None:
        rows = (plan.keys if side else plan.queries).rows[i]
        index = (rows * apart + torch.arange(x_TNH.shape[1], dtype=rows.dtype)[:, None] * step).flatten()
        plan.indices[i, side, apart, step] = index
    return flat.index_select(0, index).view(len(index) // plan.shapes[i][1 + side], -1, flat.shape[1])


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
