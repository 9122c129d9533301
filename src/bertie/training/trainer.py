"""Around the loop: resume, evaluate, log, save, finish. The same for pre-training and for every task."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from bertie import console, runtime, storage
from bertie.batches.loader import Position, Step
from bertie.checkpoints.folder import load_weights, read_checkpoint, write_model
from bertie.checkpoints.training_state import Counters, restore_newest, save_state
from bertie.contracts import Loss
from bertie.errors import DivergedError
from bertie.model.bert import BertModel
from bertie.model.flops import training_flops
from bertie.text.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.interrupts import deferred_interrupts
from bertie.training.loop import LoopSettings, StepResult, train_steps
from bertie.training.run_folder import RunFolder
from bertie.training.schedules import Schedule
from bertie.training.tensorboard_log import TensorBoardLog


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """Everything a training needs. stream: steps from a step and its position on; evaluate: held-out losses of the
    model as it is after a step, or None where what it is given said to stop; held: on which of several held-out texts that
    is, by its number: losses of different ones are not compared.

    eval_every, checkpoint_every: in steps, 0 = only at the end; checkpoint_minutes: 0 = by steps alone. data: what the
    steps are made of, as a fingerprint. max_skipped_steps: so many in a row, of which the loss or gradient is no number, end it.
    patience: evaluations without a lower loss after which it ends, with the weights of the lowest; 0 = it goes on.
    task: what task.json says, where there is one that is trained for. out: the run folder, also for a rank that does not
    own it. last_checkpoint: whether the last step leaves one, which spares who calls again the training.
    """

    title: str
    model: BertModel
    tokenizer: Tokenizer
    task: dict[str, Any] | None
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    settings: LoopSettings
    stream: Callable[[int, Position], Generator[Step]]
    evaluate: Callable[[int, Callable[[], bool]], dict[str, Loss] | None]
    eval_set: Callable[[int], int]
    eval_every: int
    checkpoint_every: int
    keep_checkpoints: int
    data_fingerprint: str
    patience: int = 0
    checkpoint_minutes: float = 0.0
    max_skipped_steps: int = 10
    tensorboard: bool = False
    final_checkpoint: bool = True
    out: Path | None = None
    ranks: Ranks = SINGLE_PROCESS
    on_step: Callable[[dict[str, Any]], None] | None = None


def train(job: TrainingJob, run: RunFolder | None) -> Counters:
    """Run the job to its end, from the run folder's newest checkpoint if it has one.

    Without a run folder (here or, of several ranks, at the first one) nothing is written. Returns where it ended. Errors:
    UserError, also when the loss stays no number; KeyboardInterrupt once what SIGINT or SIGTERM interrupted is saved.
    """
    session = _Session(job, run)
    counters = session.counters
    job.model.train()
    steps, done = job.settings.steps, counters.step
    with (
        console.progress(job.title, steps, "steps", done=done, passing=run is None) as bar,
        deferred_interrupts() as noted,
    ):
        session.start(bar, noted)
        # Closed at once however it ends: there may be processes behind it.
        with closing(job.stream(done, Position(counters.epoch, counters.epoch_step))) as stream:
            loop = train_steps(job.model, stream, job.optimizer, job.schedule, job.settings, done, job.ranks)
            while not session.out_of_patience and (
                progress := next(loop, None)
            ):  # it may have ended before it was stopped
                session.after(progress)
    if job.patience:
        session.take_best()
    taken = job.patience and counters.best_step  # the weights of an evaluation before that
    if counters.eval_step == steps and not math.isfinite(counters.eval_loss) and not taken:
        raise DivergedError(f"the loss on held-out text is no number: {divergence_hint(job)}")
    return counters


class _Session:
    """One process's work on a job: its place, what it has to write, and when."""

    def __init__(self, job: TrainingJob, run: RunFolder | None):
        self.job, self.run = job, run
        self.counters = _resume(job, run) if run is not None else Counters()
        self.counters = Counters(**job.ranks.broadcast(asdict(self.counters)))
        job.ranks.broadcast_state(job.model, job.optimizer)
        self.kept = job.ranks.any(run is not None)
        self.late: list[tuple[StepResult, dict[str, Any], float]] = []  # whose numbers may still be in a GPU's queue
        self.board = TensorBoardLog(run.path, self.counters.step) if run is not None and job.tensorboard else None
        self.saved = time.monotonic()
        self.best: dict[str, torch.Tensor] = {}  # the best weights, where there is no folder for them

    def start(self, bar: console.Progress, noted: list[int]) -> None:
        """noted: signals, as they come."""
        self.bar, self.noted = bar, noted
        self.clock = time.monotonic() - self.counters.seconds
        if self.counters.evaluation_pending:
            self.evaluate()
            self.note_best()  # the checkpoint that it resumed from
        self.began = time.monotonic()  # of a step: evaluating and saving are no part of its speed

    def after(self, progress: StepResult) -> None:
        """Log a step, and evaluate, save and stop where that is due."""
        counters, job = self.counters, self.job
        now = time.monotonic()
        counters.step, counters.seconds = progress.step + 1, now - self.clock
        counters.epoch, counters.epoch_step = progress.work.after.epoch, progress.work.after.step
        counters.tokens += progress.tokens
        self.late.append((progress, _place(counters), now - self.began))
        self.read(behind=1 if job.model.device.type == "cuda" else 0)
        if (self.kept or job.patience) and _due(counters.step, job.eval_every, job.settings.steps):
            counters.evaluation_pending = True
            self.evaluate()
        if counters.step == job.settings.steps and not job.final_checkpoint:
            self.read()
        elif self.checkpoint_is_due() or _due(counters.step, job.checkpoint_every, job.settings.steps):
            self.save()
        if self.interrupted():
            self.stop()
        self.began = time.monotonic()

    def read(self, behind: int = 0) -> None:
        """Log the steps that are not logged yet, but for the last `behind`."""
        while len(self.late) > behind:
            progress, place, seconds = self.late.pop(0)
            record = _train_record(self.job, progress, place, seconds)
            self.bar.advance(1, _shown(record))
            self.log(record)
            self.count_bad(progress, record)
            if self.job.on_step is not None:
                self.job.on_step(record)

    def log(self, record: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.log(record)
        if self.board is not None:
            self.board.write(record)

    def count_bad(self, progress: StepResult, record: dict[str, Any]) -> None:
        """Errors: UserError where steps were skipped too often in a row; the last one's batch is written down."""
        counters, job = self.counters, self.job
        if not record.get("skipped"):
            counters.consecutive_skipped = 0
            return
        counters.skipped += 1
        counters.consecutive_skipped += 1
        console.warn(
            f"step {record['step']} is skipped: loss {record['loss']:g}, gradient norm {record['grad_norm']:g}"
        )
        if counters.consecutive_skipped < job.max_skipped_steps:
            return
        kept = ""
        if self.run is not None:
            self.run.flush()
        out = self.run.path if self.run else job.out
        if out is not None and out.is_dir():
            path = out / f"bad-step-{record['step']:08d}-rank-{job.ranks.rank}.npz"
            storage.write_arrays(path, _arrays(progress.work))
            kept = f"; the last of them is in {path}"
        raise DivergedError(
            f"{job.max_skipped_steps} steps in a row without a finite loss and gradient{kept}: {divergence_hint(job)}"
        )

    def evaluate(self) -> None:
        """Held-out losses of the model as it is, into the log."""
        self.read()
        losses = self.job.evaluate(self.counters.step - 1, lambda: bool(self.noted))
        if losses is None:
            self.stop()
        values = loss_metrics(losses, self.job.settings.loss_weights)
        self.counters.evaluation_pending = False
        self.counters.eval_step, self.counters.eval_loss = self.counters.step, values["loss"]
        self.log({"split": "eval", **_place(self.counters), **values})
        if self.run is not None:
            self.run.flush()  # so that who looks can see
        if self.board is not None:
            self.board.flush()
        if self.job.patience:
            self.count_stale()

    def count_stale(self) -> None:
        """Keep the weights where the last evaluation is the best one so far; count it where it is not."""
        counters = self.counters
        if counters.best_step and not counters.eval_loss < counters.best_loss:
            counters.evaluations_without_improvement += 1
            return
        counters.evaluations_without_improvement = 0
        self.save()
        if self.run is None:
            self.note_best()
            self.best = {name: tensor.clone() for name, tensor in self.job.model.state_dict().items()}

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.job.patience <= self.counters.evaluations_without_improvement

    def take_best(self) -> None:
        """Go back to the weights of the best evaluation."""
        best = self.counters.best_step
        if best in (0, self.counters.step):  # 0: no evaluation came to a number
            return
        ended = "stopped" if self.counters.step < self.job.settings.steps else "ended"
        console.info(f"{ended} after step {self.counters.step}: taking the weights of step {best}, the best")
        if self.run is not None:
            load_weights(self.job.model, read_checkpoint(self.run.path / "checkpoints" / f"step-{best:08d}"))
        else:
            self.job.model.load_state_dict(self.best)

    def checkpoint_is_due(self) -> bool:
        """Whether the last checkpoint is too long ago, by the clock of the rank that writes them."""
        minutes = self.job.checkpoint_minutes
        if not minutes:
            return False
        return self.job.ranks.any(self.run is not None and time.monotonic() - self.saved >= 60 * minutes)

    def interrupted(self) -> bool:
        return self.job.ranks.any(bool(self.noted))

    def stop(self) -> NoReturn:
        """Save where a run stands, and end as the interrupt would have ended it."""
        self.save()
        self.job.ranks.any(False)  # who leaves early may have the others killed, one of which is saving
        if self.run is not None:
            console.info(f"saved {self.run.path} after step {self.counters.step} of {self.job.settings.steps}")
        raise KeyboardInterrupt

    def save(self) -> None:
        """Write a checkpoint; the newest are kept, and the best one."""
        self.read()
        if self.run is None:
            return
        counters, job = self.counters, self.job
        counters.metrics_bytes, counters.metrics_sha256 = self.run.flush()
        self.note_best()
        save_state(self.run.path, job.model, job.optimizer, job.tokenizer, job.task, counters, job.keep_checkpoints)
        self.saved = time.monotonic()

    def note_best(self) -> None:
        """Call the checkpoint of this step the best one, if the last evaluation says so."""
        counters = self.counters
        if not counters.eval_step or not math.isfinite(counters.eval_loss):
            return
        held = self.job.eval_set(counters.eval_step - 1)
        if not counters.best_step or held != counters.best_eval_set or counters.eval_loss < counters.best_loss:
            counters.best_step, counters.best_loss, counters.best_eval_set = counters.step, counters.eval_loss, held


def finish(job: TrainingJob, run: RunFolder, page: str, about: str) -> None:
    """Write the report and the model itself into the run folder and seal it. about: for the model card."""
    storage.write_atomic(run.path / "report.html", page)
    write_model(run.path, job.model, job.tokenizer, job.task, about)
    run.finish()


def loss_metrics(losses: dict[str, Loss], weights: dict[str, float]) -> dict[str, float]:
    """{"loss": weighted sum, "mlm_loss": nats a prediction, "mlm_accuracy": 0..1, …}"""
    values: dict[str, float] = {"loss": 0.0}
    for name, loss in losses.items():
        count = float(loss.count) or 1.0  # windows of a text weigh less than 1 together, in a small step
        values["loss"] += weights[name] * float(loss.total) / count
        values[f"{name}_loss"] = float(loss.total) / count
        if not math.isnan(loss.hits):
            values[f"{name}_accuracy"] = float(loss.hits) / count
    return values


def divergence_hint(job: TrainingJob) -> str:
    rate = f"--training.learning-rate (now {job.settings.learning_rate:g})"
    return f"the training has diverged; lower {rate} and give another --out"


def _due(step: int, every: int, steps: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)


def _train_record(job: TrainingJob, progress: StepResult, place: dict[str, Any], seconds: float) -> dict[str, Any]:
    measures = {"lr": progress.learning_rate, "grad_norm": float(progress.grad_norm)}
    values = loss_metrics(progress.losses, job.settings.loss_weights)
    seconds = max(seconds, 1e-9)
    done = sum(training_flops(job.model.encoder.config, micro) for micro in progress.work.batches)
    rate = runtime.matrix_rate(job.settings.precision, job.model.device)
    speed = {"tokens_per_second": progress.tokens / seconds, "utilisation": done / seconds / rate}
    skipped = {"skipped": True} if progress.skipped else {}
    return {"split": "train", **place, **values, **measures, **speed, **skipped}


def _shown(record: dict[str, Any]) -> str:
    """A step's record, for the progress bar."""
    right = [f"{100 * value:.0f} % right" for name, value in record.items() if name.endswith("_accuracy")][:1]
    used = record["utilisation"]
    of_machine = f" ({100 * used:.0f} % of the machine)" if used >= 0.01 else ""  # a head alone uses next to nothing
    speed = f"{record['tokens_per_second']:,.0f} tokens/s{of_machine}"
    return "  ".join([f"loss {record['loss']:.3f}", *right, speed, f"{runtime.peak_memory() / 1e9:.1f} GB"])


def _place(counters: Counters) -> dict[str, Any]:
    """epoch: that of the last step, where the counters stand before the next one."""
    ended = counters.step > 0 and counters.epoch_step == 0
    place = {name: getattr(counters, name) for name in ("step", "epoch", "tokens", "seconds")}
    return place | {"epoch": counters.epoch - ended}


def _arrays(work: Step) -> dict[str, Any]:
    """A step's micro-batches as plain arrays: "0.input_ids", "0.cu_seqlens", "0.mlm.label" …"""
    arrays: dict[str, Any] = {}
    for number, micro in enumerate(work.batches, work.first):
        names = ("input_ids", "token_type_ids", "position_ids", "kind", "example")
        arrays |= {f"{number}.{name}": getattr(micro.batch, name) for name in names}
        arrays |= {f"{number}.cu_seqlens": micro.batch.ragged.cu_seqlens, f"{number}.rows": micro.rows}
        for head, targets in micro.targets.items():
            arrays |= {f"{number}.{head}.{name}": value for name, value in vars(targets).items()}
    return arrays


def _resume(job: TrainingJob, run: RunFolder) -> Counters:
    run.require_data(job.data_fingerprint)
    saved = restore_newest(run.path, job.model, job.optimizer)
    counters = saved or Counters()
    run.cut_metrics(counters.metrics_bytes, counters.metrics_sha256)
    if saved:
        console.info(f"resuming {run.path} after step {saved.step} of {job.settings.steps}")
    return counters
