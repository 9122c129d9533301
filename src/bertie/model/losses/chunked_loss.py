"""Cross-entropy over the vocabulary at every token, without the logits of all tokens in memory.

A causal language model predicts at every token, a masked one at 15 %. With 30,000 entries, the logits of 4,096 tokens take
480 MB, and so does their gradient. Here both exist for one chunk of rows at a time, and the gradient overwrites the logits:
the forward pass computes the gradients of the inputs right away, up to the factor that the backward pass brings.

    P  predictions    D  hidden size    V  vocabulary entries
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.base.contracts import Loss, Targets
from bertie.model.losses.loss_slope import overwrite_with_slope

CHUNK_LOGITS = 1 << 23  # logits in memory at one time: 32 MiB in fp32
GPU_CHUNK_LOGITS = 1 << 29  # on a GPU, where many rows at a time are faster: 1 GiB in half precision
MIN_ROWS = 512  # smallest chunk of rows, because each chunk adds to the gradient of the whole matrix
SLICE = 4096  # rows of a product in half precision that are added to that gradient at a time


def chunked_vocabulary_loss(
    x_PD: Float[Tensor, "P D"],
    matrix_VD: Float[Tensor, "V D"],
    targets: Targets,
    bias_V: Float[Tensor, " V"] | None = None,
) -> Loss:
    """Return the cross-entropy of the logits x Wᵀ + b, as `losses.cross_entropy` does."""
    inputs = (x_PD, matrix_VD, bias_V)
    with_gradients = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs)
    total, hits = _ChunkedLoss.apply(*inputs, targets.label, targets.weight, with_gradients)
    return Loss(total, targets.weight.sum(), hits)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_PD: Tensor,
        matrix_VD: Tensor,
        bias_V: Tensor | None,
        label_P: Int[Tensor, " P"],
        weight_P: Float[Tensor, " P"],
        with_gradients: bool,  # unlike ctx.needs_input_grad, false in evaluations
    ) -> tuple[Tensor, Tensor]:
        dtype = product_dtype(x_PD)
        ctx.dtypes = (x_PD.dtype, matrix_VD.dtype, None if bias_V is None else bias_V.dtype)
        x_PD, matrix_VD = x_PD.to(dtype), matrix_VD.to(dtype)
        bias_V = None if bias_V is None else bias_V.to(dtype)
        exact = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        total, hits = x_PD.new_zeros((), dtype=exact), x_PD.new_zeros((), dtype=exact)
        dx_PD = torch.empty_like(x_PD) if with_gradients else None
        d_matrix_VD = torch.zeros_like(matrix_VD, dtype=exact) if with_gradients else None
        d_bias_V = torch.zeros_like(bias_V, dtype=exact) if with_gradients and bias_V is not None else None
        size = max(MIN_ROWS, (GPU_CHUNK_LOGITS if x_PD.is_cuda else CHUNK_LOGITS) // len(matrix_VD))
        for start in range(0, len(x_PD), size):
            rows = slice(start, start + size)
            slope = F.linear(x_PD[rows], matrix_VD, bias_V)  # the logits, which are overwritten with their gradient
            own_total, own_hits, _ = overwrite_with_slope(slope, label_P[rows], weight_P[rows])
            total += own_total
            hits += own_hits
            if dx_PD is None or d_matrix_VD is None:
                continue
            torch.mm(slope, matrix_VD, out=dx_PD[rows])
            if d_bias_V is not None:
                d_bias_V += slope.sum(0, dtype=exact)
            if dtype == exact:
                d_matrix_VD.addmm_(slope.t(), x_PD[rows])
            else:
                _add_product(d_matrix_VD, slope.t(), x_PD[rows], first=start == 0)
        ctx.save_for_backward(dx_PD, d_matrix_VD, d_bias_V)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Multiply the saved gradients in place, so it can run only once."""
        pairs = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        slopes = (None if slope is None else slope.to(dtype).mul_(gradients[0]) for slope, dtype in pairs)
        return *slopes, None, None, None


def _add_product(total_VD: Tensor, left_VP: Tensor, right_PD: Tensor, first: bool) -> None:
    """Add a product in half precision to a sum in fp32, which is 0 at first."""
    if total_VD.is_cuda and first:
        torch.mm(left_VP, right_PD, out_dtype=total_VD.dtype, out=total_VD)
    elif total_VD.is_cuda:
        total_VD += torch.mm(left_VP, right_PD, out_dtype=total_VD.dtype)
    else:  # in slices that are converted while they are in the cache
        for start in range(0, len(total_VD), SLICE):
            total_VD[start : start + SLICE] += left_VP[start : start + SLICE] @ right_PD


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: autocast's dtype where autocast is enabled."""
    kind = x.device.type
    enabled = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else x.dtype
