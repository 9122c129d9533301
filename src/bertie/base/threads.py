"""Number of processors, ranks of torchrun, environment variables that must be set before torch loads, worker processes."""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

from bertie.base.errors import UsageError

# Threads of GNU's OpenMP spin for milliseconds when they wait for each other. If another program occupies one of two
# cores, a training step takes 18 times as long with that spin, and twice as long with a short spin (dev/log). On idle
# cores, the short spin costs a tenth of the speed. OMP_WAIT_POLICY=active restores the long spin.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")

# oneDNN and torch each keep compiled products of 1,024 shapes. Packed batches have ever new shapes, so the memory of a
# server grew to 1.2 GB for a model of 45 MB. With 256 shapes it stays at 0.7 GB, about equally fast (dev/log).
for _name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(_name, "256")

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime sends data about its use to its maker

PR_SET_PDEATHSIG = 1


def cache_folder() -> Path:
    """Return the folder for what is measured or compiled on this machine. It may not exist.

    Raises:
        RuntimeError: The user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertie"


def keep_compiled_code() -> None:
    """Let torch's compiler keep its code in the user's cache, for later starts, unless TORCHINDUCTOR_CACHE_DIR is set.

    torch keeps it among the temporary files, which end with the job on many clusters. It still does, if the cache cannot
    be written. Importing the compiler sets the variable, so this comes first.
    """
    with suppress(OSError, RuntimeError):
        folder = cache_folder() / "compiled"
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if existing.is_dir() and os.access(existing, os.W_OK):
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


keep_compiled_code()


def cpu_quota() -> int:
    """Return the number of processors that this process may use: its affinity, limited by the cgroup's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no cgroup v2, or "max", which means no quota
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    return max(count, 1)


def torchrun_ranks() -> tuple[int, int, int]:
    """Return (rank, number of ranks, rank on this machine) as torchrun sets them, and (0, 1, 0) without torchrun.

    Raises:
        UsageError: The environment variables of torchrun contradict each other.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    values = [os.environ.get(name, "") for name in names]
    if values[1] in ("", "1"):
        return 0, 1, 0
    if not all(re.fullmatch(r"\d+", value) for value in values) or not int(values[0]) < int(values[1]):
        raise UsageError(f"{', '.join(names)} are {', '.join(map(repr, values))}: unset them")
    return int(values[0]), int(values[1]), int(values[2])


def torchrun_store() -> tuple[str, int, str] | None:
    """Return the host and port of the store that torchrun keeps for its ranks, and how often it has restarted them.

    None: without torchrun, or if rank 0 keeps the store.
    """
    names = ("TORCHELASTIC_USE_AGENT_STORE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    kept, host, port, restarts = (os.environ.get(name, "") for name in names)
    return (host, int(port), restarts) if kept == "True" and host and re.fullmatch(r"\d{1,5}", port) else None


def single_rank_threads(threads: int) -> int:
    """Return the number of threads for work that one rank does for all.

    torchrun lets each rank have one thread, unless OMP_NUM_THREADS is set. The others wait, or compile.

    Args:
        threads: The number of threads of this process, which is right without torchrun.
    """
    return max(threads, cpu_quota()) if torchrun_ranks()[1] > 1 else threads


def use_one_tokenizer_thread() -> None:
    """Tokenize with one thread, because several processes of bertie share the processors."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def initialize_worker(parent: int) -> None:
    """Prepare a worker process: tokenize with one thread, ignore Ctrl-C, and end when the parent ends.

    A terminal sends Ctrl-C to all processes. The parent handles it and ends its workers.

    Args:
        parent: Process id of the parent.
    """
    use_one_tokenizer_thread()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before the signal was set
        os._exit(1)


def end_with_parent(sent: signal.Signals) -> None:
    """Let the system send a signal to this process when its parent ends, also after it has become another program."""
    with suppress(OSError, AttributeError):  # Linux only; on other systems, processes outlive a parent that is killed
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, sent)
