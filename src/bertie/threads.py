"""Threads and processes: how many there is room for, and what must be set in the environment before anything loads torch."""

from __future__ import annotations

import ctypes
import math
import os
import signal
from contextlib import suppress
from pathlib import Path

# GNU's OpenMP lets threads spin for milliseconds where they wait for each other. Where another program takes one of two
# cores, a training step then takes 18 times as long, with a short spin twice (LOG.md). On cores of one's own, the
# short spin costs a tenth: OMP_WAIT_POLICY=active has the long one back.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

PR_SET_PDEATHSIG = 1


def cpu_quota() -> int:
    """Processors that this process may use: affinity, cut to the cgroup's quota (containers), at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no cgroup v2, or "max": no quota
        pass
    return max(count, 1)


def use_one_tokenizer_thread() -> None:
    """Make this process one of several that share a machine's processors: it tokenizes with one thread."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def initialize_worker(parent: int) -> None:
    """The same, and let this process end with the one that began it.

    Ctrl-C goes to all processes of a terminal; it is the first one that ends the others.
    """
    use_one_tokenizer_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # Linux only; elsewhere a killed parent's workers finish what they have
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
