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

from bertie.contracts import Loss, Targets
from bertie.model.loss_slope import overwrite_with_slope

CHUNK_LOGITS = 1 << 23  # logits in memory at one time: 32 MiB in fp32
MIN_ROWS = 512  # smallest chunk of rows, because each chunk adds to the gradient of the whole matrix
SLICE = 4096  # rows of a product in half precision that are added to that gradient at a time


def chunked_vocabulary_loss(x_PD: Float[Tensor, "P D"], matrix_VD: Float[Tensor, "V D"], targets: Targets) -> Loss:
    """Return the cross-entropy of the logits x Wᵀ, as `losses.cross_entropy` does."""
    with_gradients = torch.is_grad_enabled() and (x_PD.requires_grad or matrix_VD.requires_grad)
    total, hits = _ChunkedLoss.apply(x_PD, matrix_VD, targets.label, targets.weight, with_gradients)
    return Loss(total, targets.weight.sum(), hits)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_PD: Tensor,
        matrix_VD: Tensor,
        label_P: Int[Tensor, " P"],
        weight_P: Float[Tensor, " P"],
        with_gradients: bool,  # unlike ctx.needs_input_grad, false in evaluations
    ) -> tuple[Tensor, Tensor]:
        dtype = product_dtype(x_PD)
        ctx.dtypes = (x_PD.dtype, matrix_VD.dtype)
        x_PD, matrix_VD = x_PD.to(dtype), matrix_VD.to(dtype)
        exact = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
        total, hits = x_PD.new_zeros((), dtype=exact), x_PD.new_zeros((), dtype=exact)
        dx_PD = torch.empty_like(x_PD) if with_gradients else None
        d_matrix_VD = torch.zeros_like(matrix_VD, dtype=exact) if with_gradients else None
        size = max(MIN_ROWS, CHUNK_LOGITS // len(matrix_VD))
        for start in range(0, len(x_PD), size):
            rows = slice(start, start + size)
            slope = F.linear(x_PD[rows], matrix_VD)  # the logits, which are overwritten with their gradient
            own_total, own_hits, _ = overwrite_with_slope(slope, label_P[rows], weight_P[rows])
            total += own_total
            hits += own_hits
            if dx_PD is None or d_matrix_VD is None:
                continue
            torch.mm(slope, matrix_VD, out=dx_PD[rows])
            if dtype == exact:
                d_matrix_VD.addmm_(slope.t(), x_PD[rows])
            else:
                _add_product(d_matrix_VD, slope.t(), x_PD[rows])
        ctx.save_for_backward(dx_PD, d_matrix_VD)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Multiply the saved gradients in place, so it can run only once."""
        dx_PD, d_matrix_VD = ctx.saved_tensors
        x_dtype, matrix_dtype = ctx.dtypes
        factor = gradients[0]
        return dx_PD.to(x_dtype).mul_(factor), d_matrix_VD.to(matrix_dtype).mul_(factor), None, None, None


def _add_product(total_VD: Tensor, left_VP: Tensor, right_PD: Tensor) -> None:
    """Add a product in half precision to a sum in fp32, in slices that are converted while they are in the cache."""
    for start in range(0, len(total_VD), SLICE):
        total_VD[start : start + SLICE] += left_VP[start : start + SLICE] @ right_PD


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: that of autocast where it is enabled."""
    kind = x.device.type
    enabled = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if enabled else x.dtype
