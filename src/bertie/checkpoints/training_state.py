"""Checkpoints of a run, written atomically: the model, the optimizer's state and the counters.

A run that resumes from a checkpoint computes exactly what it would have computed without the interruption.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertie.base import config, console, storage
from bertie.base.errors import MachineError, UsageError, UserError, require_range
from bertie.batches.loader import Position
from bertie.checkpoints.find import list_checkpoints, read_tensors
from bertie.checkpoints.folder import MANIFEST, save_tensors, write_manifest, write_model
from bertie.checkpoints.model_card import About
from bertie.checkpoints.read import load_weights, read_folder
from bertie.model.model import Model
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass
class Counters:
    """Progress of a run. With the tensors of the model and the optimizer, it is sufficient to resume."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epoch of the next step, from 0."""
    epoch_step: int = 0
    """Number of the next step within its section, from 0."""
    section: int = 0
    """Section of the next step within its epoch, from 0."""
    tokens: int = 0
    """Tokens trained on, without filler."""
    seconds: float = 0.0
    """Training time, in seconds."""
    progress: float = 0.0
    """Fraction of the schedule that is complete. Only a run with a budget of time needs it."""
    measured: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """Seconds of the last evaluations and checkpoints of a run with a budget, which keeps time for the last ones."""
    metrics_bytes: int = 0
    """Size of metrics.jsonl at this checkpoint. Resuming truncates the file to it."""
    metrics_sha256: str = ""
    """Checksum of this part of metrics.jsonl."""
    skipped: int = 0
    """Skipped steps: their loss or gradient was non-finite, and they changed no weights."""
    consecutive_skipped: int = 0
    """Skipped steps since the last step that was not skipped."""
    evaluation_pending: bool = False
    """True if the run was interrupted during an evaluation, which resuming repeats."""
    eval_step: int = 0
    """Step of the last evaluation. 0: none yet."""
    eval_loss: float = 0.0
    """Loss of the last evaluation."""
    eval_set: int = 0
    """Number of the evaluation set of the last evaluation."""
    best_step: int = 0
    """Step of the checkpoint with the lowest evaluation loss. 0: none yet."""
    best_loss: float = 0.0
    """Loss of that evaluation."""
    best_eval_set: int = 0
    """Number of the evaluation set of that loss."""
    evaluations_without_improvement: int = 0
    """Evaluations since the best one, for early stopping."""

    @property
    def position(self) -> Position:
        """The position of the next step in the data."""
        return Position(self.epoch, self.epoch_step, self.section)

    @position.setter
    def position(self, position: Position) -> None:
        self.epoch, self.epoch_step, self.section = position.epoch, position.step, position.section

    @property
    def epoch_ended(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.step > 0 and self.position == Position(self.epoch)


@dataclass(frozen=True)
class StateTensors:
    """The tensors of a checkpoint, by name, on the CPU."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    """Named `key|parameter name`."""

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for part in (self.weights, self.optimizer) for tensor in part.values())


def copied_tensors(model: Model, optimizer: torch.optim.Optimizer, into: StateTensors | None = None) -> StateTensors:
    """Return copies of the tensors of a checkpoint, which training does not change.

    Args:
        model: The model.
        optimizer: Its optimizer.
        into: What an earlier call returned, and nothing reads any more: its memory is used again.
    """
    parts = _tensors_of(model, optimizer)
    places = (into.weights, into.optimizer) if into else ({}, {})
    copies_of_parts = tuple(
        {name: _copied(tensor, place.get(name)) for name, tensor in part.items()}
        for part, place in zip(parts, places, strict=True)
    )
    if next(model.parameters()).device.type == "cuda":
        torch.cuda.current_stream().synchronize()  # copies into pinned memory do not wait
    return StateTensors(*copies_of_parts)


def _copied(tensor: Tensor, place: Tensor | None) -> Tensor:
    if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
        place = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return place.copy_(tensor, non_blocking=True)


def _tensors_of(model: Model, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    states = {
        f"{key}|{name}": tensor.detach()
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}, states


def save_state(
    run: Path,
    model: Model,
    tensors: StateTensors,
    tokenizer: Tokenizer,
    task: dict[str, Any] | None,
    counters: Counters,
    keep: int,
) -> None:
    """Write checkpoints/step-NNNNNNNN atomically, then remove old checkpoints.

    Args:
        run: Folder of the run.
        model: Model to save. Its weights are not read.
        tensors: The weights, and the optimizer's state.
        tokenizer: Its tokenizer.
        task: Contents of task.json, for fine-tuning.
        counters: Progress of the run.
        keep: Number of newest checkpoints to keep. The best checkpoint is kept, too.

    Raises:
        UserError: The disk has too little space, or cannot be written. Earlier checkpoints remain.
    """
    final = run / "checkpoints" / f"step-{counters.step:08d}"
    try:
        final.parent.mkdir(exist_ok=True)
        if not final.exists():
            _require_disk_space(final, tensors.bytes)
            about = About(f"Training state after step {counters.step}.")
            with storage.atomic_folder(final) as folder:
                write_model(folder, model, tokenizer, task, about, copied=tensors.weights)
                state = folder / "training_state"
                state.mkdir()
                save_tensors(tensors.optimizer, state / "optimizer.safetensors")
                storage.write_json(state / "counters.json", asdict(counters))
                write_manifest(folder)
        for old in (folder for folder in list_checkpoints(run)[:-keep] if int(folder.name[5:]) != counters.best_step):
            # Renamed first, so that a partly removed folder does not look like a checkpoint.
            temporary = old.with_name(f".{old.name}.tmp-{os.getpid()}")
            os.rename(old, temporary)
            shutil.rmtree(temporary)
    except OSError as error:
        raise MachineError(f"cannot write {final}: {error.filename or final}: {error.strerror or error}") from error


def _require_disk_space(final: Path, size: int) -> None:
    """Raise a UserError if the disk has too little space for a checkpoint."""
    free = shutil.disk_usage(final.parent).free
    if size > free:
        raise UserError(
            f"cannot write {final}: it takes {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB free, so "
            f"{(size - free) / 1e6:,.1f} MB are missing: free some space (a repeated command resumes from the previous "
            "checkpoint)"
        )


def restore_newest(run: Path, model: Model, optimizer: torch.optim.Optimizer) -> Counters | None:
    """Load the newest intact checkpoint into the model and the optimizer.

    Temporary files of interrupted writes are removed. Newer checkpoints that are damaged are renamed to
    damaged-step-NNNNNNNN, with a warning.

    Returns:
        The counters, or None if the run has no checkpoint.

    Raises:
        UserError: All checkpoints are damaged.
    """
    storage.remove_leftovers(run / "checkpoints")
    damaged: list[tuple[Path, UserError]] = []
    for folder in reversed(list_checkpoints(run)):
        try:
            counters = load_state(folder, model, optimizer)
        except UserError as error:
            damaged.append((folder, error))
            continue
        for bad, error in damaged:
            aside = bad.with_name(f"damaged-{bad.name}")
            shutil.rmtree(aside, ignore_errors=True)  # may exist from an earlier resume
            os.rename(bad, aside)
            console.warn(f"{error}; renamed to {aside.name}, resuming from {folder.name}")
        return counters
    if damaged:
        raise damaged[0][1]
    return None


def load_state(folder: Path, model: Model, optimizer: torch.optim.Optimizer) -> Counters:
    """Load a checkpoint into the model and the optimizer, and return its counters.

    Raises:
        UserError: A file is damaged or missing, or the checkpoint belongs to another model.
    """
    _require(folder / MANIFEST)
    _require(folder / "config.json")
    loaded = load_weights(model, read_folder(folder))
    if loaded.initialized or loaded.dropped:
        raise UserError(
            f"{folder} belongs to another model: it lacks the weights of {loaded.initialized}, and the heads "
            f"{loaded.dropped} do not fit"
        )
    load_optimizer(folder, model, optimizer)
    counters = folder / "training_state" / "counters.json"
    _require(counters)
    try:
        progress = config.build(Counters, storage.read_json(counters), "counters")
        places = (
            "epoch",
            "epoch_step",
            "section",
            "tokens",
            "seconds",
            "metrics_bytes",
            "skipped",
            "consecutive_skipped",
        )
        require_range("counters", progress, *places, low=0, high=2**63)
    except UsageError as error:
        raise UserError(f"{counters} is damaged: {error}") from error
    if progress.step != int(folder.name[5:]):
        raise UserError(f"{counters} is damaged: it belongs to step {progress.step}")
    return progress


def load_optimizer(folder: Path, model: Model, optimizer: torch.optim.Optimizer, grown: tuple[str, ...] = ()) -> None:
    """Load only the optimizer's state of a checkpoint, by parameter name.

    Args:
        folder: Checkpoint.
        model: Model whose parameters the optimizer has.
        optimizer: Optimizer to load into.
        grown: Names of parameters that may have more rows than in the checkpoint. The state of new rows is 0.

    Raises:
        UserError: The file is damaged or missing.
    """
    path = folder / "training_state" / "optimizer.safetensors"
    states: dict[str, dict[str, Tensor]] = {}
    for key, tensor in read_tensors(path).items():
        kind, _, name = key.partition("|")
        states.setdefault(name, {})[kind] = tensor
    known = {name: parameter for name, parameter in model.named_parameters() if name in states}
    tuned = any(parameter.requires_grad for parameter in model.encoder.parameters())
    if not known or (tuned and not any(name.startswith("encoder.") for name in known)):
        raise UserError(f"{path} is damaged: it has no state of the encoder")
    factored = {p: group["state"] for group in optimizer.param_groups if "state" in group for p in group["params"]}
    usual = [set(states[name]) for name, parameter in known.items() if parameter not in factored]
    kinds = set.intersection(*usual) if usual else set()
    for name, parameter in known.items():  # other parameters keep the optimizer's initial state
        for kind, tensor in states[name].items():
            if tensor.ndim and name in grown and 0 < len(tensor) < len(parameter):
                new = tensor.new_zeros(len(parameter) - len(tensor), *tensor.shape[1:])
                states[name][kind] = tensor = torch.cat([tensor, new])
            fits = (
                not tensor.ndim
                if kind == "step"
                else (tensor.shape, tensor.dtype) == (parameter.shape, parameter.dtype)
            )
            if kind not in factored.get(parameter, kinds) or not fits:
                raise UserError(f"{path} is damaged: {kind} of {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
        optimizer.state[parameter] = {kind: tensor.to(parameter.device) for kind, tensor in states[name].items()}


def _require(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it, or give another --out to start over")
