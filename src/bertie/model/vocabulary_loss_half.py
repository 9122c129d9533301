"""The masked-LM loss under autocast on a CPU: product, bias, softmax and their gradients in one function.

The softmax needs fp32, and the logits over a vocabulary do not fit into the processor's cache: each pass over them takes
about 1 % of a step of a small BERT. So the forward pass converts a chunk of rows to fp32 and computes its loss and its
gradient, up to a constant factor, while the chunk is in the cache. The gradient overwrites the logits. The backward pass only
needs the matrix products (docs/log/2026-11-24-bf16-on-avx512.md).

    P  predictions    D  hidden size    V  vocabulary entries
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 19  # number of logits that are converted to fp32 at a time: 2 MiB


class HalfVocabularyLoss(torch.autograd.Function):
    """Return the weighted sum of −log p(label) and the weighted number of correct predictions, two fp32 scalars.

    The matrix products are in autocast's precision. The bias is added to the fp32 logits, because a product with a bias takes
    oneDNN a third longer.
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
        x_PD, matrix_VD, label_P1, weight_P1 = x_PD.to(half), matrix_VD.to(half), label_P[:, None], weight_P[:, None]
        slope_PV = F.linear(x_PD, matrix_VD)  # the logits; each chunk is then overwritten with its gradient
        slope_V, total, hits = torch.zeros_like(bias_V), bias_V.new_zeros(()), bias_V.new_zeros(())
        for rows in _chunks(slope_PV):
            logits, label, weight = slope_PV[rows].float().add_(bias_V), label_P1[rows], weight_P1[rows]
            peak, own = logits.amax(-1, keepdim=True), logits.gather(1, label)
            p = torch.softmax(logits, -1)
            # The largest probability is 1 / Σ exp(logit − peak). Unlike the probability of the label, it cannot underflow.
            total += ((peak - own - p.amax(-1, keepdim=True).log()) * weight).sum()
            hits += ((own >= peak) * weight).sum()
            p.scatter_add_(1, label, p.new_full((1, 1), -1.0).expand_as(label)).mul_(weight)
            slope_V += p.sum(0)
            slope_PV[rows] = p
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


def _chunks(x_PV: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // x_PV.shape[1])
    return (slice(start, start + rows) for start in range(0, len(x_PV), rows))
