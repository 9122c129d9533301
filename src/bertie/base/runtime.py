"""The machine: device, precision, threads, memory, versions.

Only this module and threads.py read environment variables.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import torch

import bertie
from bertie.base import seeding
from bertie.base.errors import UsageError, redacted
from bertie.base.threads import cpu_quota

Resolved = Literal["fp32", "bf16"]
Precision = Literal["auto", Resolved]
MAX_THREADS = 1024  # torch crashes with many more


def device() -> torch.device:
    """Return the GPU if there is one, otherwise the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is installed and compiles for the GPU: kernels with bf16 need compute capability 8.0."""
    if not torch.cuda.is_available() or torch.version.cuda is None or torch.cuda.get_device_capability() < (8, 0):
        return False
    return importlib.util.find_spec("triton") is not None


def use_threads(threads: int = 0) -> int:
    """Set the number of torch's threads, and tune torch for the CPU.

    The tuning keeps freed memory in the process and selects the faster fp32 matrix products on AMD processors.

    Args:
        threads: Number of threads. 0: OMP_NUM_THREADS if it is set, otherwise `cpu_quota()`.

    Returns:
        The number of threads.

    Raises:
        UsageError: `threads` is not a valid number.
    """
    if type(threads) is not int or not 0 <= threads <= MAX_THREADS:
        raise UsageError(f"--threads {threads}: give a number up to {MAX_THREADS}, or 0 for all")
    _keep_freed_memory()
    _full_rate_on_amd()
    variable = os.environ.get("OMP_NUM_THREADS", "")
    omp_threads = int(variable) if re.fullmatch(r"\d{1,4}", variable) else 0
    torch.set_num_threads(threads or min(omp_threads, MAX_THREADS) or cpu_quota())
    return torch.get_num_threads()


def _keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system.

    Each training step frees and allocates the same large tensors, and the system zeroes every page that it hands out. For
    a small BERT on a CPU, this took a fifth of the time (dev/log).
    Memory that a thread has freed is only for threads of the same arena: with two arenas, a server needs less memory.
    """
    trim_threshold, mmap_max, arena_max = -1, -4, -8
    with suppress(OSError, AttributeError):  # another C library, which has no such settings
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(mmap_max, 0)
        libc.mallopt(arena_max, 2)


def return_freed_memory() -> None:
    """Give freed memory back to the system, also from between blocks in use."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _full_rate_on_amd() -> None:
    """Compute fp32 matrix products with oneDNN on AMD processors, where torch's default library runs at half the speed.

    The precision "medium" is torch's public setting for oneDNN. It also allows oneDNN to round to bf16, but only in AMX
    units, which AMD processors do not have. A test product checks that nothing is rounded. With a GPU, the setting would
    change the GPU's products instead.
    """
    if torch.cuda.is_available() or _cpu("vendor_id") != "AuthenticAMD":
        return
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    if not _products_are_fp32():
        torch.set_float32_matmul_precision(previous)


def _products_are_fp32() -> bool:
    all_bits_used = torch.linspace(1, 2, 256 * 256).view(256, 256)
    return torch.equal(torch.nn.functional.linear(all_bits_used, torch.eye(256)), all_bits_used)


def resolve_precision(precision: Precision, target: torch.device) -> Resolved:
    """Resolve the precision "auto" for a device.

    A GPU uses bf16 if it supports bf16. A CPU uses bf16 if it has bf16 instructions and a measurement shows that they are
    faster. The measurement is necessary because fp32 products are faster on some CPUs with bf16 instructions. It takes
    processor time, which depends far less on other programs than wall time does.
    """
    if precision != "auto":
        return precision
    if target.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if _bf16_is_faster() else "fp32"


def require_precision(precision: Resolved, model: torch.nn.Module) -> None:
    """Check that oneDNN can compute the LSTMs of a model. Its other layers run in every precision on every processor.

    Raises UsageError if an LSTM is to be computed in bf16 on a CPU without bf16 instructions.
    """
    lstms = (layer for layer in model.modules() if isinstance(layer, torch.nn.LSTM))
    if precision == "fp32" or device().type != "cpu" or not any(lstm.proj_size == 0 for lstm in lstms):
        return  # torch has its own LSTM for those with a projection
    if torch.backends.mkldnn.is_available() and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        raise UsageError("training.precision bf16 needs a processor with bf16 instructions: set it to auto")


@functools.cache  # one answer per process, so that all models of a comparison use the same precision
def _bf16_is_faster() -> bool:
    features: Any = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older versions of torch
    if not any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")):
        return False
    # In processor time: the wall time of a product includes what other programs take, which differs between two products.
    bf16, fp32 = (_product_seconds(dtype, time.thread_time) for dtype in (torch.bfloat16, torch.float32))
    return bf16 < 0.8 * fp32


@functools.cache
def matrix_rate(precision: Resolved, target: torch.device) -> float:
    """Measure the speed of large matrix products, in floating-point operations per second.

    It is the denominator of `utilization` in metrics.jsonl. The result is cached per precision and device.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if target.type == "cpu":
        return _PRODUCT_FLOPS / _product_seconds(dtype)
    # Random, because a GPU multiplies equal numbers at a higher clock rate.
    square = torch.randn(8192, 8192, dtype=dtype, device=target)
    torch.cuda.synchronize(target)
    return 2 * 8192**3 / shortest_seconds(lambda: (torch.mm(square, square), torch.cuda.synchronize(target)))


_PRODUCT = (1024, 768, 3072)
_PRODUCT_FLOPS = 2 * math.prod(_PRODUCT)


def _product_seconds(dtype: torch.dtype, clock: Callable[[], float] = time.perf_counter) -> float:
    rows, inner, columns = _PRODUCT
    left, right = torch.ones(rows, inner, dtype=dtype), torch.ones(columns, inner, dtype=dtype)
    return shortest_seconds(lambda: torch.nn.functional.linear(left, right), clock)


def shortest_seconds(
    work: Callable[[], object], clock: Callable[[], float] = time.perf_counter, times: int = 5
) -> float:
    """Return the shortest time that some work takes of several times."""

    def seconds() -> float:
        start = clock()
        work()
        return clock() - start

    return min(seconds() for _ in range(times))


def autocast(precision: Resolved, target: torch.device) -> AbstractContextManager[Any]:
    """Return a context that computes in the given precision on the device."""
    return torch.autocast(target.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def reseed_torch(seed: int, *stream: int) -> None:
    """Seed torch's generators (dropout, initial weights) with the key (seed, *stream) of `seeding`.

    `torch.manual_seed` formats the call stack for every device that is not in use, which takes longer than a small step.
    """
    number = seeding.torch_seed(seed, *stream)
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def environment(threads: int) -> dict[str, Any]:
    """Return the versions, hardware, commit and command that environment.json records."""
    packages = ("bertie", "torch", "numpy", "tokenizers", "safetensors")
    versions = {name: importlib.metadata.version(name) for name in packages}
    accelerator = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "command": [redacted(word) for word in sys.argv],
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **versions},
        "platform": platform.platform(),
        "cpu": _cpu("model name") or platform.processor() or platform.machine(),
        "cores": cpu_quota(),
        "threads": threads,
        "accelerator": accelerator,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def process_start() -> float:
    """Return when this process was started, in seconds of `time.monotonic`; now, if the system does not say."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):  # another system
        return now
    return now - max(age, 0.0)


def code_version() -> str:
    """Return bertie's version with a checksum of its code, which tells checkouts apart that have the same version."""
    code = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        code.update(f"{path.relative_to(package)} {path.stat().st_size} ".encode() + path.read_bytes())
    return f"{bertie.__version__} (code {code.hexdigest()[:12]})"


def variable(name: str, default: str) -> str:
    """Return an environment variable of another program, such as WANDB_PROJECT."""
    return os.environ.get(name) or default


def peak_memory() -> int:
    """Return the peak resident memory of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory() -> tuple[int, int]:
    """Return the free and the total memory in bytes.

    It is the GPU's memory if there is a GPU, otherwise the machine's, limited by the cgroup. (0, 0) if unknown.
    """
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()
    try:
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free, total = (int(meminfo[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, KeyError):
        return 0, 0
    try:
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        return min(free, limit - used), min(total, limit)
    except (OSError, ValueError):  # no cgroup v2, or "max", which means no limit
        return free, total


def _cpu(key: str) -> str:
    """Return an entry of the first processor in /proc/cpuinfo, or "" if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(key))
    except (OSError, StopIteration):
        return ""


def _commit() -> str | None:
    """Return the commit of bertie's git checkout, or None for an installed package."""
    package = Path(__file__).parents[1]
    if not (package.parents[1] / ".git").exists():
        return None
    command = ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return None
    return result.stdout.strip() or None
