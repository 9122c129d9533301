"""Around the loop: resume, evaluate, log, save, finish. The same for pre-training and for every task."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from bertie import console, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import write_model
from bertie.checkpoints.state import Counters, restore, save_state
from bertie.contracts import Loss, MicroBatch
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.loop import Descent, Progress, fit
from bertie.training.page import run_page
from bertie.training.run import RunFolder
from bertie.training.schedules import Schedule


@dataclass(frozen=True, eq=False)
class Job:
    """Everything a training needs. stream: steps from a step and its position on; evaluate: held-out losses of the
    model as it is after a step.

    eval_every, checkpoint_every: in steps, 0 = only at the end. data: what the steps are made of, as a fingerprint.
    """

    title: str
    model: BertModel
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    descent: Descent
    stream: Callable[[int, Position], Iterator[Step[MicroBatch]]]
    evaluate: Callable[[int], dict[str, Loss]]
    eval_every: int
    checkpoint_every: int
    keep_checkpoints: int
    data: str
    on_step: Callable[[dict[str, Any]], None] | None = None


def train(job: Job, run: RunFolder | None) -> None:
    """Run the job to its end, from the run folder's newest checkpoint if it has one.

    Without a run folder nothing is written. Errors: UserError, also when the loss is no longer a number.
    """
    counters = _resume(job, run) if run is not None else Counters()
    clock = time.monotonic() - counters.seconds
    job.model.train()
    steps = fit(
        job.model,
        job.stream(counters.step, Position(counters.epoch, counters.epoch_step)),
        job.optimizer,
        job.schedule,
        job.descent,
        counters.step,
    )
    bars = console.progress(job.title, job.descent.steps, "steps", done=counters.step, passing=run is None)
    with bars as bar, _interrupts() as interrupts:
        started = time.monotonic()  # of the step: evaluating and saving are no part of its speed
        for progress in steps:
            taken = time.monotonic() - started
            counters.step, counters.seconds = progress.step + 1, time.monotonic() - clock
            counters.epoch, counters.epoch_step = progress.after.epoch, progress.after.step
            counters.tokens += progress.tokens
            record = _train_record(job, progress, counters, taken)
            _check_finite(record, job, run)
            bar.advance(1, f"loss {record['loss']:.3f}  {record['tokens_per_second']:,.0f} tokens/s")
            if job.on_step is not None:
                job.on_step(record)
            if run is not None:
                _keep(job, run, counters, record)
            if interrupts:
                _stop(job, run, counters)
            started = time.monotonic()


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """SIGINT and SIGTERM while the block runs: the first is noted in this list, to be heeded after the step; then they act."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # Python tells no other thread of signals
        yield noted
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _: Any) -> None:
        noted.append(number)
        restore()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield noted
    finally:
        restore()


def _stop(job: Job, run: RunFolder | None, counters: Counters) -> NoReturn:
    """Save where a run stands, and end as the interrupt would have ended it."""
    if run is not None:
        _save(job, run, counters)
        console.say(f"saved {run.path} after step {counters.step} of {job.descent.steps}")
    raise KeyboardInterrupt


def _keep(job: Job, run: RunFolder, counters: Counters, record: dict[str, Any]) -> None:
    """Log a step, and evaluate and save where that is due."""
    run.log(record)
    if _due(counters.step, job.eval_every, job.descent.steps):
        run.log({"split": "eval", **_place(counters), **summary(job.evaluate(counters.step - 1), job.descent.weights)})
        run.flush()  # so that who looks can see
    if _due(counters.step, job.checkpoint_every, job.descent.steps):
        _save(job, run, counters)


def finish(job: Job, run: RunFolder, about: str, lines: dict[str, float] | None = None) -> None:
    """Write the report and the model itself into the run folder and seal it. lines: levels for the first loss, in nats."""
    storage.write_atomic(run.path / "report.html", run_page(run.path, about, lines or {}))
    write_model(run.path, job.model, job.tokenizer, job.labels, about)
    run.finish()


def summary(losses: dict[str, Loss], weights: dict[str, float]) -> dict[str, float]:
    """{"loss": weighted sum, "mlm_loss": nats a prediction, "mlm_accuracy": 0..1, …}"""
    values: dict[str, float] = {"loss": 0.0}
    for name, loss in losses.items():
        count = max(float(loss.count), 1.0)
        values["loss"] += weights[name] * float(loss.total) / count
        values[f"{name}_loss"] = float(loss.total) / count
        if loss.hits is not None:
            values[f"{name}_accuracy"] = float(loss.hits) / count
    return values


def _due(step: int, every: int, steps: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)


def _train_record(job: Job, progress: Progress, counters: Counters, seconds: float) -> dict[str, Any]:
    measures = {"lr": progress.learning_rate, "grad_norm": float(progress.grad_norm)}
    values = summary(progress.losses, job.descent.weights)
    speed = {"tokens_per_second": progress.tokens / max(seconds, 1e-9)}
    return {"split": "train", **_place(counters), **values, **measures, **speed}


def _place(counters: Counters) -> dict[str, Any]:
    names = ("step", "epoch", "tokens", "seconds")
    return {name: getattr(counters, name) for name in names}


def _check_finite(record: dict[str, Any], job: Job, run: RunFolder | None) -> None:
    if not all(map(torch.isfinite, map(torch.tensor, (record["loss"], record["grad_norm"])))):
        if run is not None:
            run.log(record)
            run.flush()
        raise UserError(
            f"step {record['step']}: loss {record['loss']}, gradient norm {record['grad_norm']}: "
            f"the training has diverged; lower --training.learning-rate (now {job.descent.learning_rate:g}) and give "
            "another --out"
        )


def _save(job: Job, run: RunFolder, counters: Counters) -> None:
    counters.metrics_bytes = run.flush()
    save_state(run.path, job.model, job.optimizer, job.tokenizer, job.labels, counters, job.keep_checkpoints)


def _resume(job: Job, run: RunFolder) -> Counters:
    run.require_data(job.data)
    saved = restore(run.path, job.model, job.optimizer)
    counters = saved or Counters()
    run.cut_metrics(counters.metrics_bytes)
    if saved:
        console.say(f"resuming {run.path} after step {saved.step} of {job.descent.steps}")
    return counters


def run_threads(run: Path, asked: int) -> int:
    """The threads a run was started with, so that it stays repeatable; warns where another number is asked for."""
    known = run / "environment.json"
    saved = storage.read_json(known).get("threads", 0) if known.is_file() else 0
    if saved and asked and saved != asked:
        console.warn(f"{run} ran with {saved} threads and goes on with {asked}: results will differ in rounding")
    return runtime.use_threads(asked or saved)
