"""Dropout. On a CPU, torch draws one random number per element, on one thread. Here, four elements share a draw of 64 bits."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LANES = 1 << 16  # number of values of a 16-bit lane; the dropout rate is rounded to a multiple of 1 / LANES


def drop(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """Return x with dropout: a share `rate` of the elements is 0, and the others are scaled by 1 / (1 - rate).

    It uses torch's generator.
    """
    if not training or rate == 0:
        return x
    return _Drop.apply(x, None, rate) if _cheaper(x, rate) else F.dropout(x, rate)


def drop_add(x: Tensor, residual: Tensor, rate: float, training: bool = True) -> Tensor:
    """Return residual + drop(x), computed in one pass."""
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
    """Return uniform random int16 numbers, one per element. Dropout drops the elements with the lowest numbers."""
    count = math.prod(shape)
    # The range includes negative numbers and has no upper end. Otherwise the top bit of each draw would be 0.
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return bits.view(torch.int16)[:count].view(shape)


def _kept(x: Tensor, lanes: Tensor, rate: float, plus: Tensor) -> Tensor:
    """Return plus + x with dropout."""
    return torch.addcmul(plus, x, _mask(lanes, rate, x), value=keep_scale(rate))


def scaled_mask(lanes: Tensor, rate: float, like: Tensor) -> Tensor:
    """Return the factor of each element: 0 if it is dropped, otherwise the scale 1 / (1 - rate)."""
    return _mask(lanes, rate, like).mul_(keep_scale(rate))


def _mask(lanes: Tensor, rate: float, like: Tensor) -> Tensor:
    """Return 1 for elements that remain and 0 for dropped ones, in the dtype of `like`."""
    return keep_mask(lanes, rate, torch.empty_like(like, memory_format=torch.contiguous_format))


def keep_mask(lanes: Tensor, rate: float, out: Tensor) -> Tensor:
    """Write 1 for elements that remain and 0 for dropped ones to `out`, which is contiguous and has the shape of the lanes."""
    return torch.ge(lanes, round(rate * LANES) - LANES // 2, out=out)


def keep_scale(rate: float) -> float:
    """Return the factor of elements that remain, so that the expected value is unchanged."""
    return LANES / (LANES - round(rate * LANES))
