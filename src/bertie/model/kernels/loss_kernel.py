"""`loss_slope.overwrite_with_slope` as a Triton kernel: each row of logits is read and overwritten by one program.

Importing this module imports Triton.

    P  predictions    V  vocabulary entries
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float, Int
from torch import Tensor

WHOLE = 32768  # a row of as many logits fits into the registers of a program, so it is read once instead of twice
BLOCK = 4096  # logits of a longer row in registers at a time


def overwrite(
    logits_PV: Float[Tensor, "P V"], label_P: Int[Tensor, " P"], weight_P: Float[Tensor, " P"]
) -> tuple[Tensor, Tensor]:
    """Replace the logits, fp32 or in half precision, by the gradient of the loss. Everything is computed in fp32.

    Returns:
        The weighted sum of −log p(label) and the weighted number of correct predictions, two fp32 scalars.
    """
    rows, entries = logits_PV.shape
    sums_P2 = logits_PV.new_empty((rows, 2), dtype=torch.float32)
    if rows:
        block = max(128, triton.next_power_of_2(entries)) if entries <= WHOLE else BLOCK  # a power of two
        assert logits_PV.stride(1) == 1
        kernel: Any = _overwrite
        kernel[(rows,)](
            *(logits_PV, label_P, weight_P, sums_P2),
            *(logits_PV.stride(0), label_P.stride(0), weight_P.stride(0)),
            ENTRIES=entries,
            BLOCK=block,
            WHOLE=entries <= block,
            num_warps=min(32, max(4, block // 512)),
        )
    total, hits = sums_P2.sum(0).unbind()
    return total, hits


@triton.jit
def _overwrite(
    logits,
    label,
    weight,
    sums,
    logits_stride,
    label_stride,
    weight_stride,
    ENTRIES: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    here = logits + row * logits_stride
    gold = tl.load(label + row * label_stride).to(tl.int32)
    factor = tl.load(weight + row * weight_stride).to(tl.float32)
    label_logit = tl.load(here + gold).to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    if WHOLE:
        part = tl.load(here + lanes, mask=lanes < ENTRIES, other=float("-inf")).to(tl.float32)
        peak = tl.max(part, 0)
        mass = tl.exp(part - peak)
        total = tl.sum(mass, 0)
        slope = (mass / total - tl.where(lanes == gold, 1.0, 0.0)) * factor
        tl.store(here + lanes, slope.to(logits.dtype.element_ty), mask=lanes < ENTRIES)
    else:
        # Each lane has its own peak and sum, so that the lanes meet once in a row instead of once in a block.
        peaks = tl.full((BLOCK,), -3.0e38, tl.float32)  # not −∞: a logit of −∞ must not become −∞ − (−∞)
        masses = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, ENTRIES, BLOCK):
            at = start + lanes
            part = tl.load(here + at, mask=at < ENTRIES, other=float("-inf")).to(tl.float32)
            higher = tl.maximum(peaks, part)
            masses = masses * tl.exp(peaks - higher) + tl.exp(part - higher)
            peaks = higher
        peak = tl.max(peaks, 0)
        total = tl.sum(masses * tl.exp(peaks - peak), 0)
        for start in range(0, ENTRIES, BLOCK):
            at = start + lanes
            part = tl.load(here + at, mask=at < ENTRIES, other=float("-inf")).to(tl.float32)
            slope = (tl.exp(part - peak) / total - tl.where(at == gold, 1.0, 0.0)) * factor
            tl.store(here + at, slope.to(logits.dtype.element_ty), mask=at < ENTRIES)
    tl.store(sums + 2 * row, (peak - label_logit + tl.log(total)) * factor)
    tl.store(sums + 2 * row + 1, tl.where(label_logit >= peak, factor, 0.0))
