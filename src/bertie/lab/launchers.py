"""Where the processes of a lab run: on this machine, as jobs of Slurm, or on a Ray cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from bertie.base import console, runtime, threads
from bertie.base.config import Count, Range, check_ranges
from bertie.base.errors import UsageError, first_line
from bertie.corpus.executors import connect_ray, import_ray


@dataclass(frozen=True)
class ProcessLauncher:
    """Processes of this machine, behind a command that may run them elsewhere, such as srun."""

    slots: int
    prefix: tuple[str, ...] = ()
    """The command in front of theirs."""

    def start(self, arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        parent = () if self.prefix else (str(os.getpid()),)  # the process ends when this one is killed
        command = [*self.prefix, sys.executable, "-m", "bertie.lab.worker", *arguments, *parent]
        with open(log, "ab") as file:
            # In a group of its own: Ctrl-C in a terminal reaches only this process, which stops the others.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                # srun hands the signal on to its job. It does not know this process, which may be killed.
                preexec_fn=partial(threads.end_with_parent, signal.SIGTERM) if self.prefix else None,
            )

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class RayLauncher:
    """Processes on the machines of a Ray cluster, which all see the same files."""

    slots: int
    threads: int
    gpus: int
    """GPUs of each process."""
    ray: Any

    def start(self, arguments: Sequence[str], log: Path) -> RayTask:
        command = [sys.executable, "-m", "bertie.lab.worker", *arguments]
        remote = self.ray.remote(_run_command).options(num_cpus=self.threads, num_gpus=self.gpus, max_retries=0)
        return RayTask(self.ray, remote.remote(command, str(log)))

    def close(self) -> None:
        self.ray.shutdown()


@dataclass(frozen=True)
class RayTask:
    ray: Any
    task: Any

    def poll(self) -> int | None:
        done, _ = self.ray.wait([self.task], timeout=0)
        if not done:
            return None
        try:
            return self.ray.get(self.task)
        except self.ray.exceptions.RayError as error:
            console.warn(f"Ray lost a step: {first_line(error)}")
            return 1

    def terminate(self) -> None:
        self.ray.cancel(self.task, force=True)

    def wait(self) -> None:
        """Return at once: Ray ends the process by force."""


StepProcess = subprocess.Popen[bytes] | RayTask
"""A process that was started. `poll` returns its exit code, None while it runs. `terminate` asks it to stop, which a training
does after it has saved a checkpoint, and `wait` waits for that."""
Launcher = ProcessLauncher | RayLauncher
"""Starts the process of a step, `python -m bertie.lab.worker ARGUMENTS`, with its output in a log, and at most `slots` at a
time. `close` releases what it holds."""


def _run_command(command: list[str], log: str) -> int:
    """Run a command on a machine of the cluster. It ends when the worker process of Ray ends."""
    with open(log, "ab") as file:
        return subprocess.run([*command, str(os.getpid())], stdout=file, stderr=file, check=False).returncode


@dataclass(frozen=True)
class Work:
    """Where and how the steps of a lab run."""

    executor: Literal["local", "slurm", "ray"] = "local"
    """Where steps run. local: processes on this machine. slurm: jobs, with srun. ray: a Ray cluster. The machines share
    the files."""
    workers: Count = 0
    """Number of steps to run at a time. 0: as many as the machine or cluster has processors for, but one at a time on a
    machine with a GPU, one per GPU on Ray, and 16 under Slurm."""
    threads: Annotated[int, Range(1, runtime.MAX_THREADS)] = 1
    """CPU threads of each step. One is best for small models, several for large ones."""
    slurm_options: str = ""
    """Options of srun, such as "--partition gpu --gpus 1 --time 4:00:00"."""
    ray_address: str = "local"
    """Address of the head of the Ray cluster, or auto; local: start a cluster on this machine."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        if self.slurm_options and self.executor != "slurm":
            raise UsageError(f"--slurm-options needs --executor slurm, and it is {self.executor}")
        if self.ray_address != "local" and self.executor != "ray":
            raise UsageError(f"--ray-address {self.ray_address} needs --executor ray, and it is {self.executor}")

    def launcher(self) -> Launcher:
        """Return what starts the steps.

        Raises:
            UsageError: The machine lacks what it needs.
            UserError: There is no Ray cluster at the address.
        """
        match self.executor:
            case "local":
                available = max(1, threads.cpu_quota() // self.threads)
                return ProcessLauncher(self.workers or (1 if runtime.device().type == "cuda" else available))
            case "slurm":
                if shutil.which("srun") is None:
                    raise UsageError("--executor slurm needs srun: start bertie lab on a machine of the cluster")
                options = ("--ntasks=1", f"--cpus-per-task={self.threads}", "--kill-on-bad-exit")
                return ProcessLauncher(self.workers or 16, ("srun", *options, *shlex.split(self.slurm_options)))
            case "ray":
                ray = import_ray()
                connect_ray(self.ray_address, threads.cpu_quota())
                resources = ray.cluster_resources()
                gpus = int(resources.get("GPU", 0))
                available = gpus or max(1, int(resources.get("CPU", 1)) // self.threads)
                return RayLauncher(self.workers or available, self.threads, min(gpus, 1), ray)
