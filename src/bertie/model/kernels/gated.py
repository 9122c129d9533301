"""GEGLU and SwiGLU on a GPU, as operators that torch's compiler does not look into.

The compiler writes the two halves of the gradient as one tensor, computes both for each half, and takes twice as long as the
memory needs. Without Triton, the operators compute the formulas.

    T  tokens    F  intermediate size    W  both halves: 2 F
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bertie.base import runtime


def _has_kernel(wide_TF: Tensor) -> bool:
    return wide_TF.dtype != torch.float64 and runtime.has_triton()


@torch.library.custom_op("bertie::gated", mutates_args=(), schema="(Tensor wide, bool swish) -> Tensor")
def gated(wide_TF: Float[Tensor, "T W"], swish: bool) -> Float[Tensor, "T F"]:
    """Return GELU(first half) · second half, or, if `swish`, SiLU(first half) · second half."""
    if _has_kernel(wide_TF):
        from bertie.model.kernels import gated_kernel

        return gated_kernel.forward(wide_TF, swish)
    first, second = wide_TF.chunk(2, -1)
    return (F.silu(first) if swish else F.gelu(first)) * second


@torch.library.custom_op(
    "bertie::gated_backward", mutates_args=(), schema="(Tensor gradient, Tensor wide, bool swish) -> Tensor"
)
def _backward(gradient_TF: Tensor, wide_TF: Tensor, swish: bool) -> Tensor:
    if _has_kernel(wide_TF):
        from bertie.model.kernels import gated_kernel

        return gated_kernel.backward(gradient_TF, wide_TF, swish)
    first, second = wide_TF.chunk(2, -1)
    active, inner = (F.silu, torch.ops.aten.silu_backward) if swish else (F.gelu, torch.ops.aten.gelu_backward)
    return torch.cat([inner(gradient_TF * second, first), gradient_TF * active(first)], -1)


@gated.register_fake
def _(wide: Tensor, swish: bool) -> Tensor:  # noqa: ARG001
    return wide.new_empty((wide.shape[0], wide.shape[1] // 2))


@_backward.register_fake
def _(gradient: Tensor, wide: Tensor, swish: bool) -> Tensor:  # noqa: ARG001
    return torch.empty_like(wide, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001
    wide_TF, ctx.swish = inputs
    ctx.save_for_backward(wide_TF)


def _differentiate(ctx: Any, gradient_TF: Tensor) -> tuple[Tensor, None]:
    return _backward(gradient_TF, ctx.saved_tensors[0], ctx.swish), None


gated.register_autograd(_differentiate, setup_context=_save)
