"""The process of one step: python -m bertie.lab.worker PLAN STEPS STEP THREADS [PARENT]

PARENT is the process that started it, if that is on the same machine: the step then ends when the parent ends.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from bertie.base import console, runtime, storage, threads
from bertie.base.errors import UserError
from bertie.lab.plan import read_step
from bertie.lab.steps import RESULT, RUN, Workplace, tidy

ERROR = "error.txt"


def main(plan: Path, at: Workplace, parent: int) -> int:
    """Run a step of a plan. Returns the exit code; error.txt then has the message."""
    if parent:
        threads.initialize_worker(parent)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run saves a checkpoint
    at.folder.mkdir(parents=True, exist_ok=True)
    (at.folder / ERROR).unlink(missing_ok=True)
    step = read_step(plan, at.step)
    try:
        storage.write_json(at.folder / RESULT, step.run(at) | {"environment": environment(at)})
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        console.info(f"bertie: {error}")
        storage.write_atomic(at.folder / ERROR, str(error))
        return error.exit_code
    tidy(step, at)
    return 0


def environment(at: Workplace) -> dict[str, Any]:
    """Return what may change the result of a step besides its settings and inputs, which its name stands for."""
    found, run = runtime.environment(at.threads), at.folder / RUN / "environment.json"
    precision = storage.read_json(run).get("precision") if run.is_file() else None
    names = ("versions", "commit", "cpu", "accelerator", "threads")
    return {"precision": precision or "fp32", **{name: found[name] for name in names}}


if __name__ == "__main__":
    plan, steps, step, cpu_threads, *parents = sys.argv[1:]
    sys.exit(main(Path(plan), Workplace(Path(steps), step, int(cpu_threads)), int(parents[0]) if parents else 0))
