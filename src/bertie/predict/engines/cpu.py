"""Which instructions this machine has, and why an engine cannot run here."""

from __future__ import annotations

import importlib.util
import platform
from typing import Any

import torch

from bertie.base.errors import UsageError, install

BF16 = ("amx_bf16", "avx512_bf16", "bf16")
"""Instructions for bf16. Without them, torch emulates bf16 slowly."""
INT8 = ("amx_int8", "avx512_vnni", "avx_vnni", "avx_vnni_int8")
"""Instructions that sum products of int8 in int32. Without them, sums of two products saturate at 16 bits."""


def has(features: tuple[str, ...]) -> bool:
    """Whether the processor has one of these instructions."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older versions of torch
    return any(capabilities.get(name) for name in features)


def name() -> str:
    """Return the architecture and the instructions, for a cache of measurements."""
    features = [feature for feature in (*BF16, *INT8) if has((feature,))]
    return " ".join([platform.machine(), *features])


def require(engine: str, precision: str, extra: str = "", *packages: str) -> None:
    """Check that the packages of an extra are installed, and that the processor computes in a precision natively.

    Raises:
        UsageError: One is missing, or it does not.
    """
    require_packages(engine, extra, *packages)
    needs = {"bf16": BF16, "int8": INT8}.get(precision)
    if needs is not None and not has(needs):
        why = "would be slow" if precision == "bf16" else "would round sums and give wrong results"
        raise UsageError(
            f"the engine {engine} needs a processor with {' or '.join(needs[:2])}; {precision} {why} on this one: "
            "use another engine, such as torch"
        )


def require_packages(engine: str, extra: str, *packages: str) -> None:
    """Check that packages are installed.

    Raises:
        UsageError: One is missing.
    """
    if missing := [package for package in packages if importlib.util.find_spec(package) is None]:
        raise UsageError(f"the engine {engine} needs {' and '.join(missing)}: {install(extra)}")
