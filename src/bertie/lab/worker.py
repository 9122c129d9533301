"""The process of one step: python -m bertie.lab.worker PLAN STEPS STEP THREADS [PARENT]

PARENT is the process that started it, if that is on the same machine: the step then ends when the parent ends.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bertie import console, storage, threads
from bertie.errors import UserError
from bertie.lab.plan import read_step
from bertie.lab.steps import RESULT, Workplace, tidy

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
        storage.write_json(at.folder / RESULT, step.run(at))
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        console.info(f"bertie: {error}")
        storage.write_atomic(at.folder / ERROR, str(error))
        return error.exit_code
    tidy(step, at)
    return 0


if __name__ == "__main__":
    plan, steps, step, cpu_threads, *parents = sys.argv[1:]
    sys.exit(main(Path(plan), Workplace(Path(steps), step, int(cpu_threads)), int(parents[0]) if parents else 0))
