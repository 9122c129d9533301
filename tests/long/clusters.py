"""Trainings that ranks.py starts with torchrun and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SIDE = Path(__file__).with_name("ranks_side.py")
ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# oneDNN's compiled products take 120 MB of each rank: with 64 ranks on one machine, keep only a few.
ENVIRONMENT |= dict.fromkeys(("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"), "4")
LONGEST = 1800  # seconds that anything may take before it counts as a hang


@dataclass
class Training:
    """A training that was started: one torchrun with its ranks. Use it as a context manager, which kills what is left."""

    process: subprocess.Popen[bytes]
    folder: Path
    """Of the logs and the output of torchrun."""

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def ranks(self) -> list[int]:
        """The process ids of the living ranks, in order."""
        return [pid for pid in descendants(self.process.pid) if _runs_a_rank(pid)]

    def kill(self) -> int:
        """Kill torchrun and all its ranks, as the loss of a machine does."""
        pids = descendants(self.process.pid)
        for pid in (self.process.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        code = self.process.wait()
        wait_until(lambda: not any(map(_lives, pids)))
        return code

    def wait(self) -> int:
        return self.process.wait(LONGEST)

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    @property
    def texts(self) -> list[str]:
        """What the ranks printed in the last attempt, in the order of the ranks of this torchrun."""
        attempts = sorted((self.folder / "logs").glob("*/attempt_*"), key=lambda path: int(path.name[8:]))
        ranks = sorted(attempts[-1].iterdir(), key=lambda path: int(path.name)) if attempts else []
        return [(rank / "stderr.log").read_text(errors="replace") for rank in ranks]


def start(
    folder: Path,
    command: list[str],
    ranks: int,
    rows: Path,
    *torchrun: str,
    cwd: Path | None = None,
    inside: Iterable[str] = (),
) -> Training:
    """Start a training with torchrun.

    Args:
        folder: For logs; a new one.
        command: bertie's arguments.
        ranks: How many, in this torchrun.
        rows: Folder for the rows that the ranks compute.
        *torchrun: More of its arguments.
        cwd: The working directory.
        inside: A command that runs torchrun, such as `ip netns exec NAME`.
    """
    folder.mkdir(parents=True)
    order = json.dumps({"rows": str(rows), "begun": time.time()})
    line = [*inside, sys.executable, "-m", "torch.distributed.run", *torchrun, "--nproc-per-node", str(ranks)]
    line += ["--log-dir", str(folder / "logs"), "--redirects", "3", str(SIDE), order, *command]
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(line, env=os.environ | ENVIRONMENT, cwd=cwd, stdout=output, stderr=output)
    return Training(process, folder)


def wait_until(true: Callable[[], object], process: subprocess.Popen[bytes] | None = None, pause: float = 0.01) -> bool:
    """Whether it became true before the process ended."""
    until = time.monotonic() + LONGEST
    while time.monotonic() < until:
        if true():
            return True
        if process is not None and process.poll() is not None:
            return bool(true())
        time.sleep(pause)
    raise TimeoutError("it hangs")


def descendants(pid: int) -> list[int]:
    """Process ids below a process, parents first."""
    with suppress(OSError):
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [*children, *(other for child in children for other in descendants(child))]
    return []


def _runs_a_rank(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return str(SIDE).encode() in words and b"torch.distributed.run" not in words
    return False


def _lives(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
