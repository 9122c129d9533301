"""The machine: device, precision, threads, seeds, versions. With threads.py the only file that reads the environment."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import math
import os
import platform
import re
import resource
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from bertie import seeding
from bertie.errors import UsageError
from bertie.threads import cpu_quota

Precision = Literal["auto", "fp32", "bf16"]
MOST_THREADS = 1024  # torch dies of many more


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torchrun_ranks() -> tuple[int, int, int]:
    """(rank, number of ranks, rank on this machine) of a process that torchrun started; (0, 1, 0) for any other.

    Errors: UsageError where the environment says what cannot be.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    told = [os.environ.get(name, "") for name in names]
    if not told[1]:
        return 0, 1, 0
    if not all(re.fullmatch(r"\d+", value) for value in told) or not int(told[0]) < int(told[1]):
        raise UsageError(
            f"{', '.join(names)} are set to {', '.join(map(repr, told))}: start with torchrun, or unset them"
        )
    return int(told[0]), int(told[1]), int(told[2])


def use_threads(threads: int = 0) -> int:
    """Set torch's threads and return their number. 0: OMP_NUM_THREADS if that is set, else the quota.

    And what else torch leaves undone on a CPU: freed memory is kept, and AMD's processors compute at their full rate.

    Errors: UsageError for what is no number of threads.
    """
    if type(threads) is not int or not 0 <= threads <= MOST_THREADS:
        raise UsageError(f"--threads {threads}: give a number up to {MOST_THREADS}, or 0 for all")
    _keep_freed_memory()
    _full_rate_on_amd()
    asked = os.environ.get("OMP_NUM_THREADS", "")
    wanted = int(asked) if re.fullmatch(r"\d{1,4}", asked) else 0
    torch.set_num_threads(threads or min(wanted, MOST_THREADS) or cpu_quota())
    return torch.get_num_threads()


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed instead of handing it back to the system.

    A training step frees and takes the same large tensors again; each time, the system would zero every page of them.
    For a small BERT on a CPU that was a fifth of the time (LOG.md).
    """
    trim_threshold, mmap_max = -1, -4
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)
    except (OSError, AttributeError):  # another C library: nothing to set
        pass


def _full_rate_on_amd() -> None:
    """Have oneDNN do the fp32 products on a processor of AMD's, where the library that torch prefers goes at half its rate.

    "medium" is torch's public way to it. It lets oneDNN round to bf16 in units that no AMD processor has (AMX); so that none
    ever does, the products are looked at. With a GPU the setting would mean something else.
    """
    if torch.cuda.is_available() or _cpu("vendor_id") != "AuthenticAMD":
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    if not _products_are_fp32():
        torch.set_float32_matmul_precision(before)


def _products_are_fp32() -> bool:
    every_bit = torch.linspace(1, 2, 256 * 256).view(256, 256)
    return torch.equal(torch.nn.functional.linear(every_bit, torch.eye(256)), every_bit)


def resolve_precision(precision: Precision, target: torch.device) -> Literal["fp32", "bf16"]:
    """What `auto` means here: bf16 on a GPU that has it; on a CPU, bf16 where it is in hardware and measures faster.

    On some CPUs with bf16 instructions, fp32 products are the faster ones, so the flag alone does not decide.
    """
    if precision != "auto":
        return precision
    if target.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if _bf16_is_faster() else "fp32"


@functools.cache  # one answer a process, so that models that are compared are computed alike
def _bf16_is_faster() -> bool:
    features: Any = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch cannot say
    if not any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")):
        return False
    return _product_seconds(torch.bfloat16) < 0.8 * _product_seconds(torch.float32)


@functools.cache
def matrix_rate(precision: Literal["fp32", "bf16"], target: torch.device) -> float:
    """Operations a second of large matrix products, measured here and now: what `utilisation` is a share of."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if target.type == "cpu":
        return _PRODUCT_FLOPS / _product_seconds(dtype)
    square = torch.ones(8192, 8192, dtype=dtype, device=target)
    times = []
    for _ in range(5):
        torch.cuda.synchronize(target)
        start = time.perf_counter()
        torch.mm(square, square)
        torch.cuda.synchronize(target)
        times.append(time.perf_counter() - start)
    return 2 * 8192**3 / min(times)


_PRODUCT = (1024, 768, 3072)
_PRODUCT_FLOPS = 2 * math.prod(_PRODUCT)


def _product_seconds(dtype: torch.dtype) -> float:
    rows, inner, columns = _PRODUCT
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        torch.nn.functional.linear(left, right)
        times.append(time.perf_counter() - start)
    return min(times)


def autocast(precision: Literal["fp32", "bf16"], target: torch.device) -> AbstractContextManager[Any]:
    return torch.autocast(target.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def reseed_torch(seed: int, *stream: int) -> None:
    """Torch randomness (dropout, initial weights) as a pure function of the seed and a few integers."""
    torch.manual_seed(seeding.torch_seed(seed, *stream))


def environment(threads: int) -> dict[str, Any]:
    """Versions, hardware, commit and command, for environment.json."""
    packages = ("bertie", "torch", "numpy", "tokenizers", "safetensors")
    versions = {name: importlib.metadata.version(name) for name in packages}
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": sys.argv,
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "cores": cpu_quota(),
        "threads": threads,
        "accelerator": accelerator,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory() -> tuple[int, int]:
    """Bytes that are free, and all there are: the GPU's, or this machine's within the cgroup's limit; 0 where nobody says."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()
    try:
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free, whole = (int(told[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, KeyError):
        return 0, 0
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, limit - used), min(whole, limit)
    except (OSError, ValueError):  # no cgroup v2, or "max": no limit
        return free, whole


def _cpu(key: str) -> str:
    """What Linux says of the first processor, or "" where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return ""


def _commit() -> str | None:
    """The commit of bertie's own checkout, or None for an installed package."""
    here = Path(__file__).parent
    if not (here.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git on this machine
        return None
    return found.stdout.strip() or None
