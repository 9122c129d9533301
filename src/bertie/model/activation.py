"""Activation functions. On a CPU, GELU is computed in pieces whose numbers of rows are powers of two.

oneDNN compiles GELU for each new number of rows and keeps the compiled code. If the number of tokens differs between
batches, oneDNN compiles twice per step. The compiled code also lies between the activations and fragments the memory: a
process grew to five times the memory that it used (dev/log/2026-11-24.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.model.config import GATED, HeadActivation
from bertie.model.kernels.gated import gated


def activation(name: HeadActivation, x_TF: Float[Tensor, "T F"]) -> Float[Tensor, "T G"]:
    """Return the activation of x, element by element. F: intermediate size.

    G is F. A gated activation returns the activation of the first half, multiplied with the second half: G is F / 2.
    """
    if name in GATED and x_TF.is_cuda:
        return gated(x_TF, name == "swiglu")
    if name in GATED:
        first, second = x_TF.chunk(2, -1)
        return (F.silu(first) if name == "swiglu" else activation("gelu", first)) * second
    if name == "silu":
        return F.silu(x_TF)
    if name == "relu":
        return F.relu(x_TF)
    kind = "tanh" if name == "gelu_tanh" else "none"
    if x_TF.device.type == "cpu" and not torch.compiler.is_compiling():  # torch's compiler generates its own GELU
        return _Pieces.apply(x_TF, kind)
    return F.gelu(x_TF, approximate=kind)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TF: Tensor, kind: str) -> Tensor:
        ctx.save_for_backward(x_TF)
        ctx.kind, out = kind, torch.empty_like(x_TF, memory_format=torch.contiguous_format)
        for rows in powers_of_two(len(x_TF)):
            torch.ops.aten.gelu.out(x_TF[rows], approximate=kind, out=out[rows])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x_TF,) = ctx.saved_tensors
        gradient, out = gradients[0], torch.empty_like(x_TF, memory_format=torch.contiguous_format)
        for rows in powers_of_two(len(x_TF)):
            torch.ops.aten.gelu_backward.grad_input(
                gradient[rows], x_TF[rows], approximate=ctx.kind, grad_input=out[rows]
            )
        return out, None


def powers_of_two(count: int) -> Iterator[slice]:
    """Split range(count) into slices whose lengths are powers of two, the longest first."""
    start = 0
    for bit in reversed(range(count.bit_length())):
        if count & 1 << bit:
            yield slice(start, start + (1 << bit))
            start += 1 << bit
