"""Run the steps of a plan, each after those that it needs, several at a time."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bertie.base import console
from bertie.base.errors import MachineError, UsageError
from bertie.lab.launchers import Launcher, StepProcess
from bertie.lab.plan import Plan
from bertie.lab.steps import RESULT, needs
from bertie.lab.worker import ERROR

POLL_SECONDS = 0.2


@dataclass
class StepScheduler:
    """The state of the steps of a plan."""

    plan: Plan
    plan_file: Path
    steps: Path
    """The folder of the steps. Several labs may have the same one, and then share what they have in common."""
    threads: int
    """CPU threads of each step."""
    running: dict[str, StepProcess] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    """The error of each failed step, and of each step that needs one."""

    def finished(self, name: str) -> bool:
        """Return whether a step has its result."""
        return (self.steps / name / RESULT).is_file()

    def run(self, launcher: Launcher, wanted: set[str]) -> None:
        """Run the wanted steps and those that they need. A failed step does not stop the others.

        Raises:
            KeyboardInterrupt: After the running steps have stopped.
        """
        todo = [name for name in self._with_needs(wanted) if not self.finished(name)]
        if not todo:
            return
        with console.progress("lab", len(todo), "steps") as bar:
            try:
                while todo or self.running:
                    todo = self._start(launcher, todo)
                    bar.advance(self._collect(), "; ".join(map(self.plan.describe, sorted(self.running))))
                    time.sleep(POLL_SECONDS)
            finally:
                for job in self.running.values():
                    job.terminate()
                for job in self.running.values():
                    job.wait()

    def _with_needs(self, wanted: set[str]) -> list[str]:
        """Return the steps with all that they need, in the order of the plan, in which needs come first."""
        needed = set(wanted)
        for name in reversed(self.plan.steps):
            if name in needed:
                needed |= set(needs(self.plan.steps[name]))
        return [name for name in self.plan.steps if name in needed]

    def _start(self, launcher: Launcher, todo: list[str]) -> list[str]:
        """Start the steps that are ready. Return those that still wait."""
        waiting = []
        for name in todo:
            needed = needs(self.plan.steps[name])
            if broken := [need for need in needed if need in self.failed]:
                self.failed[name] = f"needs {broken[0]}, which failed"
            elif len(self.running) < launcher.slots and all(map(self.finished, needed)):
                folder = self.steps / name
                folder.mkdir(parents=True, exist_ok=True)
                arguments = [str(self.plan_file), str(self.steps), name, str(self.threads)]
                self.running[name] = launcher.start(arguments, folder / "log.txt")
            else:
                waiting.append(name)
        return waiting

    def _collect(self) -> int:
        """Remove the steps that have ended from `running`. Return their number."""
        ended = [(name, code) for name, job in self.running.items() if (code := job.poll()) is not None]
        for name, code in ended:
            del self.running[name]
            if code or not self.finished(name):
                self.failed[name] = self._error(name, code)
                console.warn(f"{self.plan.describe(name)} failed: {self.failed[name]}")
        return len(ended)

    def _error(self, name: str, code: int) -> str:
        folder = self.steps / name
        if (folder / ERROR).is_file():
            return (folder / ERROR).read_text(encoding="utf-8")
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"ended with {how}: see {folder / 'log.txt'}"


@contextmanager
def only_process(steps: Path) -> Iterator[None]:
    """Hold a folder of steps for this process.

    Raises:
        UsageError: Another process has it.
        MachineError: The folder cannot be written.
    """
    try:
        steps.mkdir(parents=True, exist_ok=True)
        file = open(steps / ".lock", "a")  # noqa: SIM115 - closed below
    except OSError as error:
        raise MachineError(f"cannot write {steps}: {error.strerror or error}: give another --out or --steps") from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process runs a lab in {steps}: wait for it, or give another --out") from error
        yield
