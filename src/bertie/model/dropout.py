"""Dropout. On a CPU, torch draws a number for every element, on one thread; here four elements share one draw of 64 bits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LANES = 1 << 16  # values of 16 bits; a rate is rounded to as many parts


def drop(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x with a share of its elements 0, and the others larger, so that the expected value stays. Uses torch's generator."""
    if not training or rate == 0:
        return x
    return _Drop.apply(x, None, rate) if _cheaper(x, rate) else F.dropout(x, rate)


def drop_add(x: Tensor, residual: Tensor, rate: float, training: bool = True) -> Tensor:
    """residual + drop(x), in one pass."""
    if not training or rate == 0:
        return residual + x
    return _Drop.apply(x, residual, rate) if _cheaper(x, rate) else residual + F.dropout(x, rate)


def _cheaper(x: Tensor, rate: float) -> bool:
    return x.device.type == "cpu" and rate < 1


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, rate: float) -> Tensor:
        lanes = random_lanes(x.shape)
        ctx.save_for_backward(lanes)
        ctx.rate, ctx.added = rate, residual is not None
        return _kept(x, lanes, rate, x.new_zeros(()) if residual is None else residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (lanes,) = ctx.saved_tensors
        gradient = gradients[0]
        return _kept(gradient, lanes, ctx.rate, gradient.new_zeros(())), gradient if ctx.added else None, None


def random_lanes(shape: torch.Size) -> Tensor:
    """What decides of each element whether it is dropped: int16 [shape], every value equally likely."""
    count = math.prod(shape)
    # From the lowest on, without an upper end: else the top bit of each draw would be 0.
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[:count].view(shape)


def _kept(x: Tensor, lanes: Tensor, rate: float, plus: Tensor) -> Tensor:
    """plus + x where its lane is not among the lowest, scaled by the share of those that are not."""
    return torch.addcmul(plus, x, _mask(lanes, rate, x), value=keep_scale(rate))


def scaled_mask(lanes: Tensor, rate: float, like: Tensor) -> Tensor:
    """What to multiply with: 0, or the scale of what is kept."""
    return _mask(lanes, rate, like).mul_(keep_scale(rate))


def _mask(lanes: Tensor, rate: float, like: Tensor) -> Tensor:
    """1 where an element is kept, in the type of `like`."""
    return keep_mask(lanes, rate, torch.empty_like(like, memory_format=torch.contiguous_format))


def keep_mask(lanes: Tensor, rate: float, out: Tensor) -> Tensor:
    """1 where an element is kept, else 0; written to `out`, contiguous and of the lanes' shape."""
    return torch.ge(lanes, round(rate * LANES) - LANES // 2, out=out)


def keep_scale(rate: float) -> float:
    """What kept elements are multiplied by, so that the expected value stays."""
    return LANES / (LANES - round(rate * LANES))
