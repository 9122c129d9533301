"""The Triton kernels against their formulas, in Triton's interpreter, which computes on the CPU.

The interpreter is chosen when Triton is imported, so each check runs in a process of its own: this file is also a script.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from bertie.base import runtime
from bertie.base.contracts import Targets
from bertie.model.activation import activation
from bertie.model.config import Activation
from bertie.model.kernels.gated import gated
from bertie.model.losses import chunked_loss
from bertie.model.losses.loss_slope import overwrite_with_slope
from bertie.model.losses.losses import cross_entropy, vocabulary_loss

HALF = (torch.bfloat16, torch.float16)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs the package triton")


def check_loss() -> None:
    """One block per row and several, the last of them not full; labels at both ends; weights of 0; equal logits."""
    from bertie.model.kernels import loss_kernel

    generator = torch.Generator().manual_seed(0)
    sizes = ((1, 1), (3, 2), (5, 127), (4, 128), (6, 1001), (2, 3000))
    for dtype in (torch.float32, *HALF):
        for rows, entries in sizes:
            logits = (4 * torch.randn(rows, entries, generator=generator)).to(dtype)
            label = torch.randint(entries, (rows,), generator=generator)
            label[0], label[-1] = 0, entries - 1
            weight = torch.rand(rows, generator=generator)
            weight[rows // 2] = 0
            logits[0] = logits[0, 0]  # all are the largest
            logits[-1, entries // 2 :] = logits[-1].max()
            expected = logits.double()
            total, hits, _ = overwrite_with_slope(expected, label, weight)
            for whole, block in ((1 << 15, 128), (1, 128), (1, 1024)):
                loss_kernel.WHOLE, loss_kernel.BLOCK = whole, block
                slope = logits.clone()
                found = loss_kernel.overwrite(slope, label, weight.expand(rows))
                torch.testing.assert_close(
                    torch.stack(found).double(), torch.stack([total, hits]), rtol=1e-5, atol=1e-5
                )
                tolerance = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]  # bf16 is truncated
                torch.testing.assert_close(slope.double(), expected, rtol=tolerance, atol=1e-6)
    total, _ = loss_kernel.overwrite(torch.empty(0, 7), torch.empty(0, dtype=torch.long), torch.empty(0))
    assert total == 0
    loss_kernel.BLOCK = 128
    beyond = torch.full((1, 300), -torch.inf)
    beyond[0, 299] = 1
    total, _ = loss_kernel.overwrite(beyond.clone(), torch.tensor([299]), torch.ones(1))
    assert total == 0
    beyond[0, 150] = torch.nan
    total, _ = loss_kernel.overwrite(beyond, torch.tensor([299]), torch.ones(1))
    assert total.isnan()  # so that the step is skipped


def check_gated() -> None:
    runtime.has_triton = lambda: True
    compare_gated()


def compare_gated() -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, *HALF):
        tolerance = 1e-2 if dtype in HALF else 1e-5
        for rows, size in ((0, 8), (1, 1), (3, 5), (16, 128), (33, 127), (17, 385)):
            for swish in (False, True):
                wide = (3 * torch.randn(rows, 2 * size, generator=generator)).to(dtype).requires_grad_()
                gradient = torch.randn(size, rows, generator=generator).to(dtype).T  # not contiguous
                exact = wide.detach().double().requires_grad_()
                found, expected = gated(wide, swish), activation("swiglu" if swish else "geglu", exact)
                assert found.dtype == dtype
                torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
                [slope] = torch.autograd.grad(found, wide, gradient)
                [expected] = torch.autograd.grad(expected, exact, gradient.double())
                torch.testing.assert_close(slope.double(), expected, rtol=tolerance, atol=tolerance)


@needs_triton
@pytest.mark.parametrize("check", [check_loss, check_gated])
def test_a_kernel_computes_the_formula(check: object) -> None:
    name = getattr(check, "__name__", "")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, __file__, name], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_the_gated_operators_compute_the_formula_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "has_triton", lambda: False)
    compare_gated()


def test_the_gated_operators_suit_torchs_compiler() -> None:
    wide, operator = torch.randn(5, 8, requires_grad=True), torch.ops.bertie.gated  # without jaxtyping's checks
    torch.library.opcheck(operator.default, (wide, True))
    compiled = torch.compile(lambda wide: operator(wide, False).sin(), backend="aot_eager", fullgraph=True)
    expected, found = (torch.autograd.grad(result.sum(), wide) for result in (gated(wide, False).sin(), compiled(wide)))
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("rows", "entries", "chunk"), [(300, 1000, 1 << 29), (301, 1001, 1 << 17), (64, 50_368, 1 << 29)]
)
def test_the_loss_over_the_vocabulary_on_a_gpu(
    rows: int, entries: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as near the formula in fp64 as the rounding of its inputs and logits allows, and the host does not wait."""
    monkeypatch.setattr(chunked_loss, "GPU_CHUNK_LOGITS", chunk)
    monkeypatch.setattr(chunked_loss, "MIN_ROWS", 1)
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = ((rows, 64), (entries, 64), (entries,))
    inputs = [torch.randn(shape, device="cuda", generator=generator).div_(4).requires_grad_() for shape in shapes]
    label = torch.randint(entries, (rows,), device="cuda", generator=generator)
    targets = Targets(label, label, (torch.arange(rows, device="cuda") % 3).float())
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = cross_entropy(F.linear(*exact), targets)
    expected = [expected.total.detach(), *torch.autograd.grad(expected.total / rows, exact)]
    with torch.autocast("cuda", torch.bfloat16):
        vocabulary_loss(*inputs[:2], targets, inputs[2])  # compiles the kernel
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss = vocabulary_loss(*inputs[:2], targets, inputs[2])
            found = [loss.total.detach(), *torch.autograd.grad(loss.total / rows, inputs)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.01 * b.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["geglu", "swiglu"])
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (7, 1), (33, 129), (500, 384)])
def test_gated_activations_on_a_gpu(rows: int, size: int, name: Activation) -> None:
    wide = torch.randn(rows, 2 * size, dtype=torch.bfloat16).requires_grad_()
    gradient = torch.randn(rows, size, dtype=torch.bfloat16)
    exact, on_gpu = wide.detach().double().requires_grad_(), wide.detach().cuda().requires_grad_()
    expected, found = activation(name, exact), activation(name, on_gpu)
    [expected_slope] = torch.autograd.grad(expected, exact, gradient.double())
    [slope] = torch.autograd.grad(found, on_gpu, gradient.cuda())
    torch.testing.assert_close(found.cpu().double(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(slope.cpu().double(), expected_slope, rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    {"check_loss": check_loss, "check_gated": check_gated}[sys.argv[1]]()
