from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from bertie.model.activation import activation
from bertie.model.config import Activation

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))

SIZES = """
import torch
from bertie.model.activation import activation
for rows in range(900, 964):
    x = torch.ones(rows, 64, requires_grad=True)
    activation("gelu", x).sum().backward()
"""


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 7, 300])
@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_activation_equals_torchs_gelu(name: Activation, rows: int, dtype: torch.dtype, device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = (3 * torch.randn(rows, 2, 24, generator=generator)).to(device, dtype).requires_grad_()
    gradient = torch.randn(24, rows, generator=generator).to(device, dtype).T  # input and gradient are not contiguous
    expected = F.gelu(wide[:, 1], approximate="tanh" if name == "gelu_tanh" else "none")
    found = activation(name, wide[:, 1])
    torch.testing.assert_close(found, expected)
    [expected] = torch.autograd.grad(expected, wide, gradient)
    [found] = torch.autograd.grad(found, wide, gradient)
    torch.testing.assert_close(found, expected)


def test_onednn_compiles_few_sizes() -> None:
    """At most ten powers of two, forward and backward. Without the split, 64 numbers of rows would give 128."""
    environment = {"ONEDNN_VERBOSE": "profile_create", "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, "-c", SIZES], env=environment, capture_output=True, text=True, check=True)
    compiled = [line for line in process.stdout.splitlines() if "create:cache_miss" in line and "eltwise" in line]
    assert len(compiled) <= 20
