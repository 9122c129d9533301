"""Attention within short packed sequences as one operation, with rotary positions, on a GPU: Triton kernels.

It reads queries, keys and values where their matrix product has written them, and rotates them in registers. The backward
pass computes the attention weights again, and writes all gradients side by side, which the gradient of that product needs.

T  packed tokens    S  sequences    N  heads    H  head size
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

LONGEST = 128
"""Length of the longest sequence that the kernels hold in registers, in tokens."""
SIZES = (32, 64)
"""Head sizes of the kernels."""
KEYS = 64
"""Keys that a kernel reads at once."""
FORWARD = {"num_warps": 8}
BACKWARD = {"num_warps": 8, "maxnreg": 128}
"""How Triton compiles the kernels. With 128 registers, two programs fit on a multiprocessor of an H100."""
DEVICE = "cuda"
"""Type of the devices that the kernels are for."""
_ARGUMENTS = "Tensor qkv, Tensor? rotation, Tensor cu_seqlens, int longest, int left, int right"


@torch.library.custom_op("bertie::short_attention", mutates_args=(), schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)")
def short_attention(
    qkv: Tensor, rotation: Tensor | None, cu_seqlens: Tensor, longest: int, left: int, right: int
) -> tuple[Tensor, Tensor]:
    """Mix values by attention.

    Args:
        qkv: Queries, keys and values, [T, 3, N, H], in half precision.
        rotation: Cosines and sines of rotary positions, [T, H]. None: no rotation.
        cu_seqlens: Cumulative sequence lengths, int32 [S + 1]. Sequences may be empty.
        longest: Upper bound of the sequence lengths, at most `LONGEST`.
        left: How many keys before its own position a query attends to. −1: all.
        right: How many keys after its own position a query attends to. −1: all.

    Returns:
        The mixed values, [T, N, H], and for the gradient the level of each query, fp32 [N, T] (see the kernels).
    """
    from bertie.model.kernels.short_attention_kernels import forward

    mixed, level = _outputs(qkv)
    forward[_programs(qkv, cu_seqlens)](  # pyright: ignore[reportIndexIssue]
        qkv.contiguous(),
        mixed if rotation is None else rotation.contiguous(),  # without rotation, it is not read
        cu_seqlens,
        mixed,
        level,
        *_numbers(qkv, longest, left, right),
        rotation is not None,
        **FORWARD,
    )
    return mixed, level


@torch.library.custom_op(
    "bertie::short_attention_backward",
    mutates_args=(),
    schema=f"(Tensor d_mixed, Tensor mixed, Tensor level, {_ARGUMENTS}) -> Tensor",
)
def short_attention_backward(
    d_mixed: Tensor,
    mixed: Tensor,
    level: Tensor,
    qkv: Tensor,
    rotation: Tensor | None,
    cu_seqlens: Tensor,
    longest: int,
    left: int,
    right: int,
) -> Tensor:
    """Return the gradient of `qkv`."""
    from bertie.model.kernels.short_attention_kernels import backward

    d_qkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    backward[_programs(qkv, cu_seqlens)](  # pyright: ignore[reportIndexIssue]
        d_mixed.contiguous(),
        mixed,
        level,
        qkv.contiguous(),
        mixed if rotation is None else rotation.contiguous(),
        cu_seqlens,
        d_qkv,
        *_numbers(qkv, longest, left, right),
        rotation is not None,
        **BACKWARD,
    )
    return d_qkv


def _programs(qkv: Tensor, cu_seqlens: Tensor) -> tuple[int]:
    return (qkv.shape[2] * (len(cu_seqlens) - 1),)


def _numbers(qkv: Tensor, longest: int, left: int, right: int) -> tuple[float, ...]:
    """Return the kernels' numbers, from `tokens` on."""
    tokens, _, heads, size = qkv.shape
    rows = max(16, 1 << (longest - 1).bit_length())  # a power of two, at least the smallest tile of tensor cores
    return tokens, 1 / math.sqrt(size), heads, size, rows, min(rows, KEYS), left, right


@short_attention.register_fake
def _outputs(qkv: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Return uninitialized outputs."""
    mixed = torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format)
    return mixed, qkv.new_empty((qkv.shape[2], len(qkv)), dtype=torch.float32)


@short_attention_backward.register_fake
def _(d_mixed: Tensor, mixed: Tensor, level: Tensor, qkv: Tensor, *_: Any) -> Tensor:  # noqa: ARG001
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, rotation, cu_seqlens, *ctx.settings = inputs
    ctx.save_for_backward(*output, qkv, rotation, cu_seqlens)


def _backward(ctx: Any, d_mixed: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    return short_attention_backward(d_mixed, *ctx.saved_tensors, *ctx.settings), *(None,) * 5


short_attention.register_autograd(_backward, setup_context=_setup_context)
