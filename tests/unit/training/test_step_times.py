"""The logged seconds of steps on a GPU, which computes while Python already queues the next step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bertie.batches.loader import Position
from bertie.checkpoints.training_state import Counters
from bertie.training import trainer
from bertie.training.distributed import SINGLE_PROCESS
from bertie.training.length import StepCount
from bertie.training.trackers import Trackers

HOST, DEVICE, EVALUATION = 0.02, 0.08, 0.5  # seconds to queue a step, to compute it, and of an evaluation


class Machine:
    """A processor that queues steps, and a GPU that computes them one after the other."""

    now = 100.0
    free = 100.0  # when the GPU has computed what is queued

    def queue(self) -> float:
        """Queue a step. Returns when it is computed."""
        self.now += HOST
        self.free = max(self.now, self.free) + DEVICE
        return self.free

    def read(self, computed: float) -> float:
        """Read a number that the GPU computes. This waits for it."""
        self.now = max(self.now, computed)
        return 1.0


class Number:
    """A number that is computed at some time."""

    def __init__(self, machine: Machine):
        self.machine, self.computed = machine, machine.queue()

    def __float__(self) -> float:
        return self.machine.read(self.computed)


@pytest.mark.parametrize("every", [0, 5])
def test_time_of_steps_includes_waiting_for_the_gpu(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, steps = Machine(), 20
    logged: list[float] = []

    def record(_: Any, result: Any, progress: dict[str, Any], seconds: float) -> dict[str, Any]:
        logged.append(seconds)
        return progress | {"step": result.step + 1}

    def evaluate() -> None:
        session.log_steps()
        machine.now += EVALUATION
        machine.free = machine.now

    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: machine.now))
    monkeypatch.setattr(trainer, "train_record", record)
    monkeypatch.setattr(trainer, "progress_detail", str)
    session: Any = trainer._Session.__new__(trainer._Session)
    session.counters, session.run, session.trackers, session.unlogged = Counters(), None, Trackers((), None, 0), []
    session.is_recorded, session.interrupts, session.run_start, session.phase = True, [], machine.now, 0
    session.writer, session.dog = trainer.CheckpointWriter(), trainer.Watchdog()
    session.bar, session.evaluate = SimpleNamespace(done=0, advance=lambda *_: None), evaluate
    session.job = SimpleNamespace(
        model=SimpleNamespace(device=SimpleNamespace(type="cuda")),
        settings=SimpleNamespace(length=StepCount(steps)),
        eval_set=lambda _: 0,
        eval_tokens=0,
        ranks=SINGLE_PROCESS,
        on_step=None,
        **{
            "eval_every": every,
            "checkpoint_every": 0,
            "checkpoint_minutes": 0,
            "patience": 0,
            "final_checkpoint": False,
        },
    )
    session.step_start = session.computed = machine.now
    after = Position(0, 1)
    for step in range(steps):
        work = SimpleNamespace(after=after)
        session.after_step(SimpleNamespace(step=step, tokens=1, work=work, grad_norm=Number(machine)))
    assert logged == pytest.approx([DEVICE] * steps, abs=1.01 * HOST)  # after an evaluation, the GPU waits for the host
    assert sum(logged) == pytest.approx(machine.now - 100 - EVALUATION * (steps // every if every else 1))
