"""Cross-entropy of half-precision logits on a CPU, a few rows at a time.

Softmax needs fp32. Converting all logits of a vocabulary first costs several passes over memory that the processor's
cache does not hold; a few rows stay in the cache until all is done with them (docs/log/bf16-on-avx512.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1 << 19  # logits that are in fp32 at one time: 2 MiB


class HalfCrossEntropy(torch.autograd.Function):
    """−log p(label) [P] and whether the label has the largest logit [P], both fp32.

    The bias is added in fp32, where it needs no pass of its own. The forward pass keeps p − onehot(label) in the precision of
    the logits. The backward pass scales that in place, so it runs once.
    """

    @staticmethod
    def forward(
        ctx: Any, logits_PC: Float[Tensor, "P C"], bias_C: Float[Tensor, " C"] | None, label_P: Int[Tensor, " P"]
    ) -> tuple[Tensor, Tensor]:
        label_P1, slope_PC = label_P[:, None], torch.empty_like(logits_PC)
        loss_P1, best_P1 = (logits_PC.new_empty(len(label_P), 1, dtype=torch.float32) for _ in range(2))
        for rows in _chunks(logits_PC):
            exact, label = logits_PC[rows].float(), label_P1[rows]
            if bias_C is not None:
                exact.add_(bias_C)
            peak, own = exact.amax(-1, keepdim=True), exact.gather(1, label)
            p = torch.softmax(exact, -1)
            # The largest probability is 1 / Σ exp(logit − peak), and never underflows as that of the label may.
            loss_P1[rows] = peak - own - p.amax(-1, keepdim=True).log()
            best_P1[rows] = (own >= peak).float()
            slope_PC[rows] = p.scatter_add_(1, label, p.new_full((1, 1), -1.0).expand_as(label))
        ctx.save_for_backward(slope_PC)
        best_P = best_P1[:, 0]
        ctx.mark_non_differentiable(best_P)
        return loss_P1[:, 0], best_P

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (slope_PC,) = ctx.saved_tensors
        bias_C = slope_PC.new_zeros(slope_PC.shape[1], dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for rows in _chunks(slope_PC):
            exact = slope_PC[rows].float().mul_(gradients[0][rows, None])
            slope_PC[rows] = exact
            if bias_C is not None:
                bias_C += exact.sum(0)
        return slope_PC, bias_C, None


def _chunks(x_PC: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK // x_PC.shape[1])
    return (slice(start, start + rows) for start in range(0, len(x_PC), rows))
