"""The softmax over the vocabulary with its loss and its gradient, computed while a few rows of logits are in the cache.

The logits over a vocabulary do not fit into a processor's cache, so each pass over them reads and writes the memory. Here
the logits are read once and overwritten once (dev/log/2026-11-24-bf16-on-avx512.md). On a GPU, loss_kernel.py does so.

    P  predictions    V  vocabulary entries
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bertie.base import runtime

CHUNK = 1 << 19  # number of logits that are in the cache at a time: 2 MiB in fp32


def overwrite_with_slope(
    logits_PV: Float[Tensor, "P V"],
    label_P: Int[Tensor, " P"],
    weight_P: Float[Tensor, " P"],
    bias_V: Float[Tensor, " V"] | None = None,
) -> tuple[Tensor, Tensor, Float[Tensor, " V"] | None]:
    """Replace the logits by the gradient of the loss, in place. The softmax is computed in fp32 at least.

    Args:
        logits_PV: The logits, without the bias.
        label_P: The gold classes.
        weight_P: The weight of each prediction.
        bias_V: A bias in fp32 to add to the logits. A product with a bias takes oneDNN a third longer.

    Returns:
        The weighted sum of −log p(label), the weighted number of correct predictions, and the gradient of the bias.
    """
    exact = torch.promote_types(logits_PV.dtype, torch.float32)
    if logits_PV.is_cuda and bias_V is None and exact == torch.float32 and runtime.has_triton():
        from bertie.model.kernels import loss_kernel

        return *loss_kernel.overwrite(logits_PV, label_P, weight_P), None
    label_P1, weight_P1 = label_P[:, None], weight_P[:, None].to(exact)
    total, hits = logits_PV.new_zeros((), dtype=exact), logits_PV.new_zeros((), dtype=exact)
    slope_V = None if bias_V is None else torch.zeros_like(bias_V)
    size = max(1, CHUNK // logits_PV.shape[1]) if logits_PV.device.type == "cpu" else max(1, len(logits_PV))
    for start in range(0, len(logits_PV), size):
        rows = slice(start, start + size)
        logits, label, weight = logits_PV[rows].to(exact), label_P1[rows], weight_P1[rows]
        if bias_V is not None:
            logits = logits.add_(bias_V) if exact != logits_PV.dtype else logits + bias_V
        peak, label_logit = logits.amax(-1, keepdim=True), logits.gather(1, label)
        p = torch.softmax(logits, -1)
        # The largest probability is 1 / Σ exp(logit − peak). Unlike the probability of the label, it cannot underflow.
        total += ((peak - label_logit - p.amax(-1, keepdim=True).log()) * weight).sum()
        hits += ((label_logit >= peak) * weight).sum()
        p.scatter_add_(1, label, p.new_full((1, 1), -1.0).expand_as(label)).mul_(weight)
        if slope_V is not None:
            slope_V += p.sum(0)
        logits_PV[rows] = p
    return total, hits, slope_V
