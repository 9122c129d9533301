"""The description of a training job: pre-training and fine-tuning build one, and trainer.py runs it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bertie.base.contracts import Loss
from bertie.batches.loader import Position, Step
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.loop import LoopSettings
from bertie.training.schedules import Schedule
from bertie.training.trackers import Tracker


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """Everything that `trainer.train` needs. Steps are counted from 0 in calls and from 1 in logs and checkpoints."""

    title: str
    """Title of the progress bar."""
    model: Model
    tokenizer: Tokenizer
    """Saved with the model."""
    task: dict[str, Any] | None
    """Content of task.json, or None if the model is not trained for a task."""
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    settings: LoopSettings
    stream: Callable[[int, Position], Generator[Step]]
    """stream(step, position): the endless training data from optimizer step `step` on, which begins at `position`."""
    evaluate: Callable[[int, Callable[[], bool]], dict[str, Loss] | None]
    """evaluate(step, should_stop): held-out losses by head after `step`, or None if `should_stop` returned true."""
    eval_set: Callable[[int], int]
    """eval_set(step): number of the evaluation set used after `step`. Losses on different sets are not compared."""
    eval_every: int
    """Steps between evaluations; 0: evaluate only after the last step."""
    checkpoint_every: int
    """Steps between checkpoints; 0: save only after the last step."""
    keep_checkpoints: int
    """Number of newest checkpoints to keep, in addition to the best one."""
    data_fingerprint: str
    """Hash of the training data. A run resumes only with the same data."""
    eval_tokens: int = 0
    """Tokens of an evaluation set, from which a clock estimates how long an evaluation takes until one was measured."""
    patience: int = 0
    """Evaluations without a lower loss after which training stops early, with the best weights; 0: never."""
    checkpoint_minutes: float = 0.0
    """Minutes after which to save a checkpoint between two of `checkpoint_every`; 0: save by steps only."""
    max_skipped_steps: int = 10
    """Consecutive skipped steps (non-finite loss or gradient) after which training fails."""
    trackers: tuple[Tracker, ...] = ()
    """Programs that show the curves of the run."""
    final_checkpoint: bool = True
    """Whether to save a checkpoint after the last step. Without it, a repeated call trains from the previous one."""
    out: Path | None = None
    """The run folder, also on ranks that do not write to it: a failing rank saves its last batch there."""
    ranks: Ranks = SINGLE_PROCESS
    on_step: Callable[[dict[str, Any]], None] | None = None
    """Called with the metrics record of every step."""
