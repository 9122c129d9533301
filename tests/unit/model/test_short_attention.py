"""The kernels of short_attention.py: on a GPU, or on a CPU in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.attention import eager
from bertie.model.attention.window import FULL, AttentionInput, Pattern
from bertie.model.kernels.short_attention import short_attention
from bertie.model.positions import rotary_angles, rotate, rotation

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported
pytest.importorskip("triton", reason="needs the package triton")

# The interpreter cannot multiply matrices in bf16. On a GPU, products in fp32 are rounded to TF32.
KINDS = {"cpu": (torch.float32, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def inputs(lengths: list[int], size: int, is_rotary: bool) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return queries, keys and values of two heads, the rotation, and the boundaries of sequences."""
    generator = torch.Generator().manual_seed(len(lengths))
    qkv = torch.randn(sum(lengths), 3, 2, size, generator=generator)
    positions = torch.cat([torch.arange(length) for length in lengths])
    table = rotation(rotary_angles(positions, size, 10_000.0)) if is_rotary else None
    bounds = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    return qkv.to(DEVICE), None if table is None else table.to(DEVICE), bounds.to(DEVICE)


def formula(qkv: Tensor, table: Tensor | None, bounds: Tensor, longest: int, pattern: Pattern) -> Tensor:
    q, k, v = qkv.unbind(1)
    if table is not None:
        q, k = rotate(q, table), rotate(k, table)
    ragged = Ragged(bounds, longest)
    return eager(AttentionInput(q, k, v, ragged, ragged, dropout=0.0, pattern=pattern))


@pytest.mark.parametrize("kind", KINDS[DEVICE], ids=str)
@pytest.mark.parametrize("is_rotary", [False, True])
@pytest.mark.parametrize(
    ("lengths", "longest", "size", "pattern"),
    [
        ([1], 1, 32, FULL),
        ([5, 1, 0, 16, 9], 16, 32, FULL),
        ([5, 1, 0, 16, 9], 16, 64, Pattern(window=3)),
        ([5, 40], 41, 64, Pattern(causal=True)),
        ([128, 1, 127, 0, 0], 128, 64, Pattern(window=64)),
        ([128, 1, 127, 0, 0], 128, 32, FULL),
    ],
)
def test_output_and_gradients_agree_with_the_formula(
    lengths: list[int], longest: int, size: int, is_rotary: bool, pattern: Pattern, kind: torch.dtype
) -> None:
    qkv, table, bounds = inputs(lengths, size, is_rotary)
    qkv = qkv.to(kind).requires_grad_()
    weight = torch.randn(sum(lengths), 2, size, generator=torch.Generator().manual_seed(0)).to(DEVICE, kind)
    found, _ = short_attention(qkv, table, bounds, longest, *pattern.sides)
    assert found.dtype == kind
    exact = qkv.detach().float().requires_grad_()
    expected = formula(exact, table, bounds, longest, pattern)
    [gradient], [right] = torch.autograd.grad(found, qkv, weight), torch.autograd.grad(expected, exact, weight.float())
    assert float((found - expected).detach().norm() / expected.detach().norm()) < TOLERANCE[kind]
    assert (gradient - right).norm() / right.norm() < TOLERANCE[kind]


def test_the_operation_obeys_the_rules_of_torch() -> None:
    qkv, table, bounds = inputs([3, 16, 7], 32, True)
    kind = KINDS[DEVICE][0]
    torch.library.opcheck(short_attention, (qkv.to(kind).requires_grad_(), table, bounds, 16, 3, 3))
