"""Run a training job: resume, train, evaluate, save, stop. Pre-training and fine-tuning share this file.

- What happens on resume? `_restore` loads the newest checkpoint of the run folder (weights, optimizer, `Counters`) and
  truncates metrics.jsonl to the length that it had then. `job.stream` then continues at the saved position.
- Where does a batch become a loss? In `train_steps` (loop.py). It yields the result of every optimizer step.
- Who decides when to evaluate, save or stop? `_Session.after_step`, after every step, with the `Length` of the run:

      log        every step (on a GPU one step late, so that the host does not wait)
      evaluate   every `eval_every` steps and after the last step
      save       every `checkpoint_every` steps, every `checkpoint_minutes`, and after the last step;
                 with `patience`, also after every evaluation that is the best so far
      stop       on SIGINT or SIGTERM, after a save; when `patience` is exhausted; after `max_skipped_steps`

- Which weights result? The weights of the last step; with `patience`, of the best evaluation.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any, NoReturn

import torch

from bertie.base import console, storage
from bertie.base.errors import DivergedError, UserError
from bertie.batches.loader import Position
from bertie.checkpoints.folder import write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.checkpoints.read import load_weights, read_folder
from bertie.checkpoints.training_state import Counters, StateTensors, copied_tensors, restore_newest, save_state
from bertie.training.checkpoint_writer import CheckpointWriter, checkpoint_writer
from bertie.training.interrupts import deferred_interrupts
from bertie.training.job import TrainingJob
from bertie.training.length import Length
from bertie.training.loop import StepResult, train_steps
from bertie.training.records import batch_arrays, loss_metrics, progress_detail, run_progress, train_record
from bertie.training.run_folder import REPORT, RunFolder
from bertie.training.trackers import Trackers
from bertie.training.watchdog import Watchdog, watchdog


def train(job: TrainingJob, run: RunFolder | None) -> Counters:
    """Train until the last step, or until patience is exhausted. Resume if the run folder has a checkpoint.

    Args:
        job: The job. Its model and optimizer are changed in place.
        run: The run folder, or None to write nothing. With several ranks, only rank 0 has one.

    Returns:
        The counters after the last step.

    Raises:
        DivergedError: After too many skipped steps, or if the last held-out loss is NaN or infinite.
        UserError: If the run folder is damaged, or if it belongs to other data.
        KeyboardInterrupt: After SIGINT or SIGTERM, as soon as a checkpoint is saved.
    """
    session = _Session(job, run)
    counters = session.counters
    job.model.train()
    done, length = counters.step, session.length
    units = length.total, length.unit, length.done(done, counters.seconds)
    bars = console.progress(job.title, *units, passing=run is None)
    with (
        Trackers(job.trackers, run, done) as session.trackers,
        bars as bar,
        deferred_interrupts() as interrupts,
        checkpoint_writer() as session.writer,
        watchdog() as session.dog,
    ):
        session.start(bar, interrupts)
        # `closing` ends the worker processes behind the stream, also after an exception.
        with closing(job.stream(done, counters.position)) as stream:
            results = train_steps(job.model, stream, job.optimizer, job.schedule, job.settings, done, job.ranks)
            # Patience is checked first: a resumed run may have exhausted it already.
            while not session.out_of_patience and (result := next(results, None)):
                session.after_step(result)
    if run is not None:
        run.flush()
    if job.patience:
        session.load_best_weights()
    best_is_loaded = job.patience and counters.best_step
    if counters.eval_step == counters.step and not math.isfinite(counters.eval_loss) and not best_is_loaded:
        raise DivergedError(f"the held-out loss is not finite: {divergence_hint(job)}")
    return counters


def finish(job: TrainingJob, run: RunFolder, page: str, about: About) -> None:
    """Write the report and the model into the run folder, and mark the run as finished.

    Args:
        job: The trained job.
        run: Its run folder.
        page: The report as HTML.
        about: What the model card says.
    """
    storage.write_atomic(run.path / REPORT, page)
    write_model(run.path, job.model, job.tokenizer, job.task, about)
    write_manifest(run.path)


def divergence_hint(job: TrainingJob) -> str:
    """Return the cause and the remedy for an error message about a loss that is NaN or infinite."""
    rate = f"--training.learning-rate (now {job.settings.learning_rate:g})"
    return f"the training has diverged; lower {rate} and give another --out"


class _Session:
    """One process's state while it runs a job: its progress, unlogged steps, and the times of saves and steps."""

    def __init__(self, job: TrainingJob, run: RunFolder | None):
        self.job, self.run = job, run
        self.counters = _restore(job, run) if run is not None else Counters()
        self.counters = Counters(**job.ranks.broadcast(asdict(self.counters)))
        job.ranks.broadcast_state(job.model, job.optimizer)
        self.is_recorded = job.ranks.any(run is not None)
        # Step and progress. The numbers of the last one may still be in a GPU's queue.
        self.unlogged: list[tuple[StepResult, dict[str, Any]]] = []
        # Until the training begins.
        self.trackers, self.writer, self.dog = Trackers((), None, 0), CheckpointWriter(), Watchdog()
        self.last_save, self.saved_step = time.monotonic(), self.counters.step
        self.copied: StateTensors | None = None  # of the last checkpoint
        self.best_weights: dict[str, torch.Tensor] = {}  # kept in memory if there is no run folder

    @property
    def length(self) -> Length:
        return self.job.settings.length

    def start(self, bar: console.Progress, interrupts: list[int]) -> None:
        """Begin to count time. `interrupts`: receives the number of the first signal."""
        self.bar, self.interrupts = bar, interrupts
        counters = self.counters
        self.run_start = self.length.start(counters.seconds, counters.progress, counters.measured)
        self.phase = self.job.eval_set(counters.step)  # of the next step
        if counters.evaluation_pending:
            self.evaluate()
            self.update_best()  # the checkpoint of this step exists already: the run resumed from it
        self.step_start = self.computed = time.monotonic()

    def after_step(self, result: StepResult) -> None:
        """Log a step; evaluate, save and stop if due."""
        counters, job = self.counters, self.job
        now = time.monotonic()
        self.dog.beat(result.step + 1)
        counters.step, counters.seconds = result.step + 1, now - self.run_start
        counters.position = result.work.after
        counters.tokens += result.tokens
        for seconds in self.writer.poll():
            self.length.measure("checkpoint", seconds)
        self.length.tick(now - self.step_start, job.eval_tokens / max(result.tokens, 1))
        self.follow_length(result)
        last = self.length.is_over(counters.step)
        self.unlogged.append((result, run_progress(counters)))
        evaluates = last or (_due(counters.step, job.eval_every) and self.length.fits("evaluation"))
        saves = self.timed_save_is_due() or _due(counters.step, job.checkpoint_every)
        # On a GPU, the last step is not awaited, so that the next one is queued meanwhile.
        self.log_steps(but_last=1 if job.model.device.type == "cuda" and not (evaluates or saves) else 0)
        logged = time.monotonic()
        if (self.is_recorded or job.patience) and evaluates:
            counters.evaluation_pending = True
            self.evaluate()
        if last:
            saves = job.final_checkpoint
        elif saves:
            saves = self.length.fits("checkpoint")
        if saves:
            self.save(wait=last)
        if (evaluates or saves) and not last:
            self.length.update()
            self.follow_length(result)
        if job.ranks.any(bool(self.interrupts)):
            self.save_and_stop()
        # Evaluation and saving do not count as time of a step. Logging does: on a GPU, it waits for the step before.
        paused = time.monotonic() - logged
        self.step_start, self.computed = now + paused, self.computed + paused

    def follow_length(self, result: StepResult) -> None:
        """Note what a resume needs. The step after the end of a phase begins an epoch."""
        counters = self.counters
        counters.progress, counters.measured = self.length.state
        phase = self.job.eval_set(counters.step)
        if phase != self.phase:
            self.phase, counters.position = phase, Position(result.work.position.epoch + 1)

    def log_steps(self, but_last: int = 0) -> None:
        """Log the unlogged steps, except for the last `but_last` ones."""
        while len(self.unlogged) > but_last:
            result, progress = self.unlogged.pop(0)
            float(result.grad_norm)  # this waits for a GPU to complete the step
            before, self.computed = self.computed, time.monotonic()
            record = train_record(self.job, result, progress, self.computed - before)
            done = self.length.done(progress["step"], progress["seconds"])
            self.bar.advance(done - self.bar.done, progress_detail(record))
            self.log(record)
            self.count_skipped(result, record)
            if self.job.on_step is not None:
                self.job.on_step(record)

    def log(self, record: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.log(record)
        self.trackers.write(record)

    def count_skipped(self, result: StepResult, record: dict[str, Any]) -> None:
        """Count skipped steps. After too many in a row, save the last batch to a file and raise DivergedError."""
        counters, job = self.counters, self.job
        if not record.get("skipped"):
            counters.consecutive_skipped = 0
            return
        counters.skipped += 1
        counters.consecutive_skipped += 1
        console.warn(f"skipped step {record['step']}: loss {record['loss']:g}, gradient norm {record['grad_norm']:g}")
        if counters.consecutive_skipped < job.max_skipped_steps:
            return
        problem = f"{job.max_skipped_steps} steps in a row without a finite loss and gradient"
        if self.run is not None:
            self.run.show()
        out = self.run.path if self.run else job.out
        if out is not None and out.is_dir():
            path = out / f"bad-step-{record['step']:08d}-rank-{job.ranks.rank}.npz"
            storage.write_array(path, batch_arrays(result.work))
            problem += f"; the batch of the last one is in {path}"
        raise DivergedError(f"{problem}: {divergence_hint(job)}")

    def evaluate(self) -> None:
        """Compute and log the held-out losses. With patience, compare them with the best ones."""
        self.log_steps()
        begun = time.monotonic()
        losses = self.job.evaluate(self.counters.step - 1, self.is_interrupted)
        if losses is None:
            self.save_and_stop()
        values = loss_metrics(losses, self.job.settings.loss_weights)
        self.counters.evaluation_pending = False
        self.counters.eval_step, self.counters.eval_loss = self.counters.step, values["loss"]
        self.counters.eval_set = self.job.eval_set(self.counters.step - 1)
        self.log({"split": "eval", **run_progress(self.counters), **values})
        if self.run is not None:
            self.run.show()
        self.trackers.flush()
        if self.job.patience:
            self.update_patience()
        self.length.measure("evaluation", time.monotonic() - begun)

    def is_interrupted(self) -> bool:
        """Return whether a signal came. An evaluation asks now and then."""
        self.dog.beat()
        return bool(self.interrupts)

    def update_patience(self) -> None:
        """Save the weights if the last evaluation is the best so far; else count it."""
        counters = self.counters
        if counters.best_step and not counters.eval_loss < counters.best_loss:
            counters.evaluations_without_improvement += 1
            return
        counters.evaluations_without_improvement = 0
        self.save()
        if self.run is None:
            self.update_best()
        if not self.is_recorded:
            self.best_weights = {name: tensor.clone() for name, tensor in self.job.model.state_dict().items()}

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.job.patience <= self.counters.evaluations_without_improvement

    def load_best_weights(self) -> None:
        """Load the weights of the best evaluation, unless it followed the last step."""
        counters, best = self.counters, self.counters.best_step
        if best in (0, counters.step):  # 0: no evaluation had a finite loss
            return
        ended = f"ended after step {counters.step}: "
        if not self.length.is_over(counters.step):
            ended = (
                f"stopped early, in epoch {counters.epoch + (not counters.epoch_ended)}, after step {counters.step}: "
            )
            again = console.plural(counters.evaluations_without_improvement, "evaluation")
            ended += f"no held-out loss below {counters.best_loss:.4f} in {again}; "
        console.info(f"{ended}loading the weights of step {best}, the best evaluation")
        if not self.is_recorded:
            self.job.model.load_state_dict(self.best_weights)
            return
        if self.run is not None:
            load_weights(self.job.model, read_folder(self.run.path / "checkpoints" / f"step-{best:08d}"))
        self.job.ranks.broadcast_weights(self.job.model)

    def timed_save_is_due(self) -> bool:
        """Return whether the last checkpoint is older than `checkpoint_minutes`, by the clock of the rank that saves."""
        minutes = self.job.checkpoint_minutes
        if not minutes:
            return False
        return self.job.ranks.any(self.run is not None and time.monotonic() - self.last_save >= 60 * minutes)

    def save_and_stop(self) -> NoReturn:
        """Save a checkpoint and raise KeyboardInterrupt."""
        self.save(wait=True)
        # Wait for the rank that saves: torchrun may kill all ranks as soon as one has ended.
        self.job.ranks.any(False)
        if self.run is not None:
            console.info(
                f"saved {self.run.path} after {self.length.position(self.counters.step, self.counters.seconds)}"
            )
        raise KeyboardInterrupt

    def save(self, wait: bool = False) -> None:
        """Write a checkpoint in the background, and then remove all but the newest ones and the best one.

        wait: Until it is complete.
        """
        self.log_steps()
        if self.run is None:
            return
        counters, job, begun = self.counters, self.job, time.monotonic()
        if self.saved_step != counters.step:
            counters.seconds = begun - self.run_start
            try:
                counters.metrics_bytes, counters.metrics_sha256 = self.run.flush()
            except UserError as error:
                if wait or job.patience:  # all ranks count on the checkpoint of the best evaluation
                    raise
                console.warn(f"{error}; training continues without a checkpoint of step {counters.step}")
                self.last_save = begun
                return
            self.update_best()
            if job.patience and counters.best_step == self.saved_step:  # the run needs it at its end
                self.writer.complete()
            self.writer.settle()
            self.copied = copied_tensors(job.model, job.optimizer, self.copied)
            saved = Counters(**asdict(counters))
            arguments = self.run.path, job.model, self.copied, job.tokenizer, job.task, saved, job.keep_checkpoints
            self.writer.write(partial(save_state, *arguments))
            self.last_save, self.saved_step = begun, counters.step
        if wait:
            self.writer.complete()

    def update_best(self) -> None:
        """Make this step the best one if its last evaluation has the lowest loss on its evaluation set."""
        counters = self.counters
        if not counters.eval_step or not math.isfinite(counters.eval_loss):
            return
        other_set = counters.eval_set != counters.best_eval_set
        if not counters.best_step or other_set or counters.eval_loss < counters.best_loss:
            counters.best_step, counters.best_loss = counters.step, counters.eval_loss
            counters.best_eval_set = counters.eval_set


def _restore(job: TrainingJob, run: RunFolder) -> Counters:
    """Load the newest checkpoint, if there is one, into model and optimizer. Drop the metrics logged after it."""
    run.require_same("data", job.data_fingerprint)
    run.append("ranks", job.ranks.count)
    saved = restore_newest(run.path, job.model, job.optimizer)
    counters = saved or Counters()
    run.truncate_metrics(counters.metrics_bytes, counters.metrics_sha256)
    if saved:
        console.info(f"resuming {run.path} after {job.settings.length.position(saved.step, saved.seconds)}")
    return counters


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
