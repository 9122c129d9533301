"""GEGLU and SwiGLU as Triton kernels, which read and write each number once. torch's compiler computes both halves of the
gradient for each half.

Importing this module imports Triton.

    T  tokens    F  intermediate size    W  both halves: 2 F
"""

from __future__ import annotations

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from jaxtyping import Float
from torch import Tensor

TILE = (8, 128, 4)  # rows and columns of a program, and its warps


def forward(wide_TF: Float[Tensor, "T W"], swish: bool) -> Float[Tensor, "T F"]:
    """Return act(first half) · second half, where act is GELU, or SiLU if `swish`."""
    out_TF = wide_TF.new_empty((wide_TF.shape[0], wide_TF.shape[1] // 2))
    _launch(_forward, (wide_TF.contiguous(), out_TF), out_TF, swish)
    return out_TF


def backward(gradient_TF: Float[Tensor, "T F"], wide_TF: Float[Tensor, "T W"], swish: bool) -> Float[Tensor, "T W"]:
    """Return the gradient of the input of `forward`."""
    out_TF = torch.empty_like(wide_TF, memory_format=torch.contiguous_format)
    _launch(_backward, (gradient_TF.contiguous(), wide_TF.contiguous(), out_TF), gradient_TF, swish)
    return out_TF


def _launch(kernel: Any, tensors: tuple[Tensor, ...], narrow_TF: Tensor, swish: bool) -> None:
    rows, size = narrow_TF.shape
    blocks = triton.cdiv(rows, TILE[0]) * triton.cdiv(size, TILE[1])
    if blocks:
        kernel[(blocks,)](*tensors, rows, SIZE=size, SWISH=swish, ROWS=TILE[0], COLUMNS=TILE[1], num_warps=TILE[2])


@triton.jit
def _part(rows, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return a program's first row, and the rows, columns and mask of its part."""
    across: tl.constexpr = (SIZE + COLUMNS - 1) // COLUMNS  # programs side by side
    first = (tl.program_id(0) // across).to(tl.int64) * ROWS
    row = tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % across) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return first, row, column, (first + row < rows) & (column < SIZE)


@triton.jit
def _slopes(x, SWISH: tl.constexpr):
    """Return the activation and its derivative."""
    if SWISH:
        share = tl.sigmoid(x)
        slope = share * (1.0 + x * (1.0 - share))
    else:
        share = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        slope = share + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    return x * share, slope


@triton.jit(do_not_specialize=["rows"])
def _forward(wide, out, rows, SIZE: tl.constexpr, SWISH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    first, row, column, mask = _part(rows, SIZE, ROWS, COLUMNS)
    here = wide + first * (2 * SIZE) + row * (2 * SIZE) + column
    x = tl.load(here, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(here + SIZE, mask=mask, other=0.0).to(tl.float32)
    active, _ = _slopes(x, SWISH)
    tl.store(out + first * SIZE + row * SIZE + column, (active * y).to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _backward(
    gradient, wide, out, rows, SIZE: tl.constexpr, SWISH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    first, row, column, mask = _part(rows, SIZE, ROWS, COLUMNS)
    there = first * (2 * SIZE) + row * (2 * SIZE) + column
    x = tl.load(wide + there, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(wide + there + SIZE, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(gradient + first * SIZE + row * SIZE + column, mask=mask, other=0.0).to(tl.float32)
    active, slope = _slopes(x, SWISH)
    tl.store(out + there, (g * y * slope).to(out.dtype.element_ty), mask=mask)
    tl.store(out + there + SIZE, (g * active).to(out.dtype.element_ty), mask=mask)
