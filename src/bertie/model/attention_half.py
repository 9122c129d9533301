"""Attention on a CPU in half precision: groups of sequences as in `attention_groups.py`, on grids with few different shapes.

oneDNN compiles a matrix product for each new shape and keeps the compiled code. To limit the number of shapes, queries and
keys are padded to a multiple of `MULTIPLE`, and the number of sequences in a group is a power of two.

Tensors are in half precision. The softmax is computed in fp32 and rounded. The matrix products apply the scale of dropout in
fp32, because rounding it to bf16 would change it by 0.2 %.

    Q  packed queries    T  packed keys and values    N  heads    H  head size
    S  sequences of a group    q, t  padded queries and keys    B  = S × N
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.activation import powers_of_two
from bertie.model.attention_groups import Side, cells_of, flat_rows, grid_groups, grid_side, most, packed, planned
from bertie.model.attention_loop import product
from bertie.model.attention_window import AttentionInput, QueryBlock
from bertie.model.dropout import keep_mask, keep_scale, random_lanes

MULTIPLE = 16
# Added to the scores of keys that a query must not attend to. In fp16 it is -inf.
HIDDEN = -1e30


def grouped_half(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute attention in half precision for groups of sequences with similar lengths (see `attention.Attention`)."""
    plan = planned(_plan, x)
    return _GroupedHalf.apply(x.q, x.k, x.v, plan, x.dropout, x.pattern.bias(x.q.shape[1], *most(plan.shapes), x.q))


@dataclass(frozen=True, eq=False)
class _Plan:
    queries: Side
    keys: Side
    shapes: list[tuple[int, int, int]]
    """For each group: B, q, t."""
    blocks: list[list[QueryBlock]]
    """For each group: blocks of queries with the keys that they need."""
    hidden: list[Tensor | None]
    """For each group: mask to add to the scores, `HIDDEN` or 0, [B or 1, q or 1, t]. None if every query attends to every
    key."""
    real: list[Tensor | None]
    """For each group: 1 for a query, 0 for padding, [S, 1, q, 1]. None if there is no padding."""
    indices: dict[tuple[int, int, int, int], Tensor] = field(default_factory=dict)
    """Cache of the indices that `_grid` gathers, by group, side, and the strides of a row and of a head."""


def _plan(x: AttentionInput) -> _Plan:
    heads, dtype, pattern = x.q.shape[1], x.q.dtype, x.pattern
    q_lengths, k_lengths = x.queries.lengths.numpy(), x.keys.lengths.numpy()
    alike = grid_groups(q_lengths, k_lengths, heads)
    groups = [group[part] for group in alike for part in powers_of_two(len(group))]
    queries = grid_side(x.queries.cu_seqlens.numpy(), q_lengths, groups, heads, MULTIPLE)
    keys = grid_side(x.keys.cu_seqlens.numpy(), k_lengths, groups, heads, MULTIPLE)
    shapes, blocks, hidden, real = [], [], [], []
    for rows, columns, no_query, no_key in zip(queries.rows, keys.rows, queries.past, keys.past, strict=True):
        shape = (len(rows) * heads, rows.shape[2], columns.shape[2])
        near = pattern.visible(shape[1], shape[2], rows.device)
        # In a causal pattern, padding comes after every key that a query attends to.
        unseen = None if no_key is None or pattern.causal else no_key.transpose(2, 3)
        if near is not None:
            unseen = ~near[None] if unseen is None else unseen | ~near
        if unseen is not None and unseen.ndim == 4:
            if (
                no_query is not None and near is not None
            ):  # its window may hold no key: the softmax of -inf alone is NaN
                unseen = unseen & ~no_query
            unseen = unseen.expand(len(rows), heads, -1, shape[2]).flatten(0, 1)
        shapes.append(shape)
        blocks.append(pattern.blocks(*shape[1:]))
        hidden.append(None if unseen is None else unseen.to(dtype).mul_(HIDDEN))
        real.append(None if no_query is None else (~no_query).to(dtype))
    return _Plan(queries, keys, shapes, blocks, hidden, real)


class _GroupedHalf(torch.autograd.Function):
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
                own = torch.softmax(scores, -1)
                lanes = random_lanes(own.shape) if dropout else None
                used = own if lanes is None else keep_mask(lanes, dropout, out=scores).mul_(own)
                product(used, v[:, block.keys], keep_scale(dropout), mixed[:, block.queries])
                kept += [own, lanes]
        ctx.save_for_backward(*kept)
        ctx.plan, ctx.dropout, ctx.shape, ctx.bias = plan, dropout, k_TNH.shape, None if bias is None else bias.shape
        return packed(out, plan.queries, q_QNH.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        plan, kept, scale = ctx.plan, iter(ctx.saved_tensors), 1 / math.sqrt(gradients[0].shape[-1])
        dq, dk, dv = (cells_of(gradients[0], side) for side in (plan.queries, plan.keys, plan.keys))
        d_bias = dq.new_zeros(ctx.bias, dtype=torch.float32) if ctx.needs_input_grad[5] else None
        for i, shape in enumerate(plan.shapes):
            q, k, v = next(kept), next(kept), next(kept)
            gradient = _grid(gradients[0], plan, i, 0)
            if (real := plan.real[i]) is not None:
                gradient.unflatten(0, (len(real), -1)).mul_(real)
            of_keys = [x[plan.keys.spans[i]].view(shape[0], shape[2], -1) for x in (dk, dv)]
            # The blocks add to the gradients of the same keys: in fp32, to round each sum once.
            several = len(plan.blocks[i]) > 1
            sums = [torch.zeros_like(x, dtype=torch.float32) for x in of_keys] if several else of_keys
            for block in plan.blocks[i]:
                own, lanes = next(kept), next(kept)
                own_q, own_k, own_v = q[:, block.queries], k[:, block.keys], v[:, block.keys]
                own_gradient = gradient[:, block.queries]
                d_own, used = product(own_gradient, own_v.transpose(1, 2), keep_scale(ctx.dropout)), own
                if lanes is not None:
                    mask = keep_mask(lanes, ctx.dropout, out=torch.empty_like(own))
                    d_own.mul_(mask)
                    used = mask.mul_(own)
                d_scores = torch.ops.aten._softmax_backward_data(d_own, own, -1, own.dtype)
                if d_bias is not None:
                    summed = d_scores.unflatten(0, (-1, len(d_bias))).sum(0, dtype=d_bias.dtype)
                    d_bias[:, block.queries, block.keys] += summed
                of_queries = dq[plan.queries.spans[i]].view(shape[0], shape[1], -1)
                product(d_scores, own_k, scale, of_queries[:, block.queries])
                products = ((d_scores, own_q, scale), (used, own_gradient, keep_scale(ctx.dropout)))
                for total, (left, right, factor) in zip(sums, products, strict=True):
                    if several:
                        total[:, block.keys] += product(left.transpose(1, 2), right, factor)
                    else:
                        product(left.transpose(1, 2), right, factor, total)
            if several:
                for x, total in zip(of_keys, sums, strict=True):
                    x.copy_(total)
        dk, dv = (packed(cells, plan.keys, ctx.shape) for cells in (dk, dv))
        d_bias = None if d_bias is None else d_bias.to(dq.dtype)
        return packed(dq, plan.queries, gradients[0].shape), dk, dv, None, None, d_bias


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
