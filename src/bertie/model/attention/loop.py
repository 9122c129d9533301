"""Attention on a CPU, one sequence after the other, with an explicit backward pass.

It needs no padding and no gathering. The matrix products of a sequence read the packed queries, keys and values in place, and
their results remain in the cache until they are used. If the pattern excludes keys, a sequence has several blocks of queries,
each with the keys that it needs. A causal model then computes little more than half of the attention weights.

    Q  packed queries    T  packed keys and values    N  heads    H  head size    q, t  queries and keys of one part
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.attention.window import AttentionInput, QueryBlock
from bertie.model.dropout import random_lanes, scaled_mask


def looped(x: AttentionInput) -> Float[Tensor, "Q N H"]:
    """Compute attention with a loop over the sequences (see `attention.Attention`)."""
    parts = _parts(x)
    longest = max((part.block.queries.stop for part in parts), default=0)
    seen = x.pattern.visible(longest, longest, x.q.device)
    bias = x.pattern.bias(x.q.shape[1], longest, longest, x.q)
    return _Looped.apply(x.q, x.k, x.v, parts, x.dropout, None if seen is None else ~seen, bias)


class _Part(NamedTuple):
    """A block of a sequence."""

    rows: slice
    """Its queries in Q."""
    columns: slice
    """Its keys in T."""
    block: QueryBlock
    """Both, counted from the beginning of the sequence."""
    cells: slice
    """Its attention weights in the flat array of the weights of all parts."""
    shape: tuple[int, int, int]
    """Shape of its attention weights, [N, q, t]."""
    is_first: bool
    """Whether it is the first part of its sequence."""


def _parts(x: AttentionInput) -> list[_Part]:
    parts, at = [], 0
    rows, columns = x.queries.cu_seqlens.tolist(), x.keys.cu_seqlens.tolist()
    for i in range(len(columns) - 1):
        for number, block in enumerate(x.pattern.blocks(rows[i + 1] - rows[i], columns[i + 1] - columns[i])):
            asking, needed = _shifted(block.queries, rows[i]), _shifted(block.keys, columns[i])
            shape = (x.q.shape[1], asking.stop - asking.start, needed.stop - needed.start)
            parts.append(_Part(asking, needed, block, slice(at, at + math.prod(shape)), shape, number == 0))
            at += math.prod(shape)
    return parts


def _shifted(part: slice, start: int) -> slice:
    return slice(start + part.start, start + part.stop)


class _Looped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q_QNH: Tensor,
        k_TNH: Tensor,
        v_TNH: Tensor,
        parts: list[_Part],
        dropout: float,
        hidden: Tensor | None,  # [longest, longest]: true where a query must not see a key; positions in the sequence
        bias: Tensor | None,  # [N, longest, longest]: to add to the scores
    ) -> Tensor:
        count = parts[-1].cells.stop if parts else 0
        weights = q_QNH.new_empty(count)
        lanes = random_lanes(torch.Size([count])) if dropout else None
        out_QNH = torch.empty_like(q_QNH, memory_format=torch.contiguous_format)
        for part, q, k, v in _walk(parts, q_QNH, k_TNH, v_TNH):
            scores = product(q, k.transpose(1, 2), 1 / math.sqrt(q.shape[-1]))
            if bias is not None:
                scores.add_(bias[:, part.block.queries, part.block.keys])
            if hidden is not None:
                unseen = hidden[part.block.queries, part.block.masked]
                scores[:, :, -unseen.shape[1] :].masked_fill_(unseen, -torch.inf)
            probabilities = torch.softmax(scores, -1, out=weights[part.cells].view(part.shape))
            if lanes is not None:
                probabilities = scaled_mask(lanes[part.cells].view(part.shape), dropout, scores).mul_(probabilities)
            out_QNH[part.rows] = torch.bmm(probabilities, v).transpose(0, 1)
        ctx.save_for_backward(q_QNH, k_TNH, v_TNH, weights, lanes)
        ctx.parts, ctx.dropout, ctx.bias = parts, dropout, None if bias is None else bias.shape
        return out_QNH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q_QNH, k_TNH, v_TNH, weights, lanes = ctx.saved_tensors
        dq_QNH = torch.empty_like(q_QNH, memory_format=torch.contiguous_format)
        dk_TNH, dv_TNH = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (k_TNH, v_TNH))
        d_bias = q_QNH.new_zeros(ctx.bias) if ctx.needs_input_grad[6] else None
        scale = 1 / math.sqrt(q_QNH.shape[-1])
        for part, q, k, v in _walk(ctx.parts, q_QNH, k_TNH, v_TNH):
            gradient = gradients[0][part.rows].transpose(0, 1)
            probabilities = weights[part.cells].view(part.shape)
            d_own = torch.bmm(gradient, v.transpose(1, 2))
            used = probabilities
            if lanes is not None:
                mask = scaled_mask(lanes[part.cells].view(part.shape), ctx.dropout, probabilities)
                d_own.mul_(mask)
                used = mask.mul_(probabilities)
            d_scores = torch.ops.aten._softmax_backward_data(d_own, probabilities, -1, probabilities.dtype)
            if d_bias is not None:
                d_bias[:, part.block.queries, part.block.keys] += d_scores
            dq_QNH[part.rows] = product(d_scores, k, scale).transpose(0, 1)
            dk = product(d_scores.transpose(1, 2), q, scale).transpose(0, 1)
            dv = torch.bmm(used.transpose(1, 2), gradient).transpose(0, 1)
            if part.is_first:
                dk_TNH[part.columns], dv_TNH[part.columns] = dk, dv
            else:
                dk_TNH[part.columns] += dk
                dv_TNH[part.columns] += dv
        return dq_QNH, dk_TNH, dv_TNH, None, None, None, d_bias


def _walk(
    parts: list[_Part], q_QNH: Tensor, k_TNH: Tensor, v_TNH: Tensor
) -> Iterator[tuple[_Part, Tensor, Tensor, Tensor]]:
    """Yield the queries [N, q, H], keys and values [N, t, H] of each sequence, as views that are not contiguous."""
    q_NQH, k_NTH, v_NTH = (x.transpose(0, 1) for x in (q_QNH, k_TNH, v_TNH))
    for part in parts:
        yield part, q_NQH[:, part.rows], k_NTH[:, part.columns], v_NTH[:, part.columns]


def product(left: Tensor, right: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return scale × left @ right, computed by one kernel."""
    return torch.baddbmm(left.new_empty(()), left, right, beta=0, alpha=scale, out=out)
