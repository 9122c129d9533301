"""The masked-LM loss under autocast on a CPU: product, bias, softmax and their gradients in one function.

The softmax needs fp32. So the forward pass converts a chunk of rows to fp32 and computes its loss and its gradient, up to a
constant factor, while the chunk is in the cache. The backward pass only needs the matrix products
(dev/log/2026-11-24-bf16-on-avx512.md).

    P  predictions    D  hidden size    V  vocabulary entries
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.losses.loss_slope import overwrite_with_slope


class HalfVocabularyLoss(torch.autograd.Function):
    """Return the weighted sum of −log p(label) and the weighted number of correct predictions, two fp32 scalars.

    The matrix products are in autocast's precision.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_PD: Float[Tensor, "P D"],
        matrix_VD: Float[Tensor, "V D"],
        bias_V: Float[Tensor, " V"],
        label_P: Int[Tensor, " P"],
        weight_P: Float[Tensor, " P"],
    ) -> tuple[Tensor, Tensor]:
        half = torch.get_autocast_dtype("cpu")
        x_PD, matrix_VD = x_PD.to(half), matrix_VD.to(half)
        slope_PV = F.linear(x_PD, matrix_VD)  # the logits, which are overwritten with their gradient
        total, hits, slope_V = overwrite_with_slope(slope_PV, label_P, weight_P, bias_V)
        ctx.save_for_backward(x_PD, matrix_VD, slope_PV, slope_V)
        ctx.mark_non_differentiable(hits)
        return total, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_PD, matrix_VD, slope_PV, slope_V = ctx.saved_tensors
        factor = float(gradients[0])
        of_x, of_matrix = _scaled(factor, slope_PV, matrix_VD), _scaled(factor, slope_PV.t(), x_PD)
        return of_x.float(), of_matrix.float(), slope_V * factor, None, None


def _scaled(factor: float, left: Tensor, right: Tensor) -> Tensor:
    """Return factor × left @ right. The factor multiplies the fp32 sums, before rounding."""
    return torch.addmm(left.new_empty(()), left, right, beta=0, alpha=factor)
