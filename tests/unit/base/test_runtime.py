from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
import torch

from bertie.base import runtime
from bertie.base.errors import UsageError


def test_environment_records_versions_and_works_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    found = runtime.environment(threads=3)
    assert found["threads"] == 3
    assert (
        found["versions"]["torch"] == torch.__version__.split("+")[0] or found["versions"]["torch"] == torch.__version__
    )
    assert found["cores"] >= 1

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert runtime.environment(threads=3)["commit"] is None


def test_reseeding_makes_torchs_draws_a_function_of_the_key() -> None:
    draws = []
    for key in ((0, 1), (0, 2), (1, 1), (0, 1)):
        runtime.reseed_torch(*key)
        draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[3]
    assert draws[0] != draws[1] != draws[2] != draws[0]


@pytest.mark.parametrize(
    ("features", "seconds", "expected"),
    [
        ({"avx512_bf16": False, "amx_bf16": False}, {}, "fp32"),
        ({"avx512_bf16": True}, {torch.bfloat16: 1.0, torch.float32: 2.0}, "bf16"),
        ({"amx_bf16": True}, {torch.bfloat16: 1.9, torch.float32: 2.0}, "fp32"),  # hardly faster
    ],
)
def test_auto_precision_is_bf16_if_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, features: dict[str, bool], seconds: dict[torch.dtype, float], expected: str
) -> None:
    monkeypatch.setattr(runtime, "_bf16_is_faster", runtime._bf16_is_faster.__wrapped__)  # without its cache
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(runtime, "_product_seconds", lambda dtype, _: seconds[dtype])
    assert runtime.resolve_precision("auto", torch.device("cpu")) == expected
    assert runtime.resolve_precision("fp32", torch.device("cpu")) == "fp32"
    assert runtime.resolve_precision("bf16", torch.device("cpu")) == "bf16"


@pytest.mark.parametrize(("projected", "has_bf16"), [(0, False), (4, False), (0, True)])
def test_lstms_in_bf16_need_a_processor_with_bf16(
    projected: int, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_bf16)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LSTM(8, 8, proj_size=projected))
    refused = not projected and not has_bf16
    with pytest.raises(UsageError, match=r"training\.precision bf16") if refused else nullcontext():
        runtime.require_precision("bf16", model)
    runtime.require_precision("fp32", model)


def test_other_programs_do_not_change_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the steps of a lab are trained in different precisions, and a stopped one ends with other scores."""

    def interrupted(left: torch.Tensor, _: torch.Tensor) -> None:
        if left.dtype == torch.bfloat16:
            time.sleep(0.03)  # another program has the core
        end = time.thread_time() + (0.002 if left.dtype == torch.bfloat16 else 0.01)
        while time.thread_time() < end:
            pass

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(torch.nn.functional, "linear", interrupted)
    assert runtime._bf16_is_faster.__wrapped__()


@pytest.mark.parametrize(
    ("threads", "variable", "expected"), [(1, "2", 1), (0, "1", 1), (0, "", None), (0, "2,1", None)]
)
def test_the_argument_precedes_omp_num_threads_and_the_quota(
    monkeypatch: pytest.MonkeyPatch, threads: int, variable: str, expected: int | None
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert runtime.use_threads(threads) == (expected or runtime.cpu_quota())


@pytest.mark.parametrize(
    ("vendor", "gpu", "exact", "expected"),
    [
        ("AuthenticAMD", False, True, "medium"),
        ("AuthenticAMD", False, False, "highest"),  # oneDNN rounds to bf16
        ("AuthenticAMD", True, True, "highest"),
        ("GenuineIntel", False, True, "highest"),
        ("", False, True, "highest"),
    ],
)
def test_amd_processors_use_onednn_unless_it_rounds(
    monkeypatch: pytest.MonkeyPatch, vendor: str, gpu: bool, exact: bool, expected: str
) -> None:
    inputs = torch.float64 if exact else torch.bfloat16  # replaces the product of this machine

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.to(inputs) @ w.to(inputs).T).float()

    monkeypatch.setattr(runtime, "_cpu", {"vendor_id": vendor}.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.nn.functional, "linear", linear)
    try:
        runtime._full_rate_on_amd()
        assert torch.get_float32_matmul_precision() == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def test_products_of_onednn_are_as_exact_as_torchs_default() -> None:
    """A layer of BERT-base, forward and both gradients, compared with float64.

    AMX would round; AMD processors do not have it.
    """
    if torch.cpu.get_capabilities().get("amx_bf16"):
        pytest.skip("needs a processor without AMX")
    generator = torch.Generator().manual_seed(0)
    x, w, g = (torch.randn(shape, generator=generator) for shape in ((256, 768), (3072, 768), (256, 3072)))
    errors = {}
    try:
        for precision in ("highest", "medium"):
            torch.set_float32_matmul_precision(precision)
            found = (x @ w.t(), g @ w, g.t() @ x)
            exact = (x.double() @ w.double().t(), g.double() @ w.double(), g.double().t() @ x.double())
            errors[precision] = max(float((a - b).abs().max()) for a, b in zip(found, exact, strict=True))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert errors["medium"] < 4 * errors["highest"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_openmp_spins_briefly_unless_the_user_sets_it(given: dict[str, str], expected: str) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = "import sys, os, bertie; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", program]
    process = subprocess.run(command, env=env | given, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == expected
