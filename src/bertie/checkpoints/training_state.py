"""What a run needs to go on exactly where it stood: model, optimizer, counters; whole or not there."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bertie import config, console, storage
from bertie.checkpoints.folder import (
    MANIFEST,
    list_checkpoints,
    load_weights,
    read_checkpoint,
    read_tensors,
    save_tensors,
    write_manifest,
    write_model,
)
from bertie.errors import UsageError, UserError, require_range
from bertie.model.bert import BertModel
from bertie.text.tokenizer import Tokenizer


@dataclass
class Counters:
    """Where a run stands: with the model's and the optimizer's tensors, all that resuming needs."""

    step: int = 0
    epoch: int = 0
    epoch_step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    metrics_bytes: int = 0
    metrics_sha256: str = ""
    skipped: int = 0
    """Steps whose loss or gradient was no number, which changed nothing."""
    consecutive_skipped: int = 0
    evaluation_pending: bool = False
    """Interrupted while it was evaluating."""
    eval_step: int = 0
    """Of the last evaluation, and its loss; 0: none yet."""
    eval_loss: float = 0.0
    best_step: int = 0
    """The checkpoint whose last evaluation was the best, and that loss; 0: none yet."""
    best_loss: float = 0.0
    best_eval_set: int = 0
    """The held-out text that loss is of, by its number."""
    evaluations_without_improvement: int = 0
    """Evaluations since the best one, where training ends after so many."""


def save_state(
    run: Path,
    model: BertModel,
    optimizer: torch.optim.Optimizer,
    tokenizer: Tokenizer,
    task: dict[str, Any] | None,
    counters: Counters,
    keep: int,
) -> None:
    """Write checkpoints/step-NNNNNNNN atomically, then remove all but the newest `keep` and the best.

    Errors: UserError where the disk has no room; what stood there before stays.
    """
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    final = checkpoints / f"step-{counters.step:08d}"
    if not final.exists():
        _require_room(final, model, optimizer)
        with storage.atomic_folder(final) as folder:
            write_model(folder, model, tokenizer, task, f"Training state after step {counters.step}.")
            state = folder / "training_state"
            state.mkdir()
            save_tensors(_optimizer_tensors(optimizer, model), state / "optimizer.safetensors")
            storage.write_json(state / "counters.json", asdict(counters))
            write_manifest(folder)
    for old in (folder for folder in list_checkpoints(run)[:-keep] if int(folder.name[5:]) != counters.best_step):
        doomed = old.with_name(f".{old.name}.tmp-{os.getpid()}")  # half removed must not look like a checkpoint
        os.rename(old, doomed)
        shutil.rmtree(doomed)


def _require_room(final: Path, model: BertModel, optimizer: torch.optim.Optimizer) -> None:
    """Errors: UserError where the disk has no room, before a byte is written."""
    state = [tensor for values in optimizer.state.values() for tensor in values.values()]
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *state))
    free = shutil.disk_usage(final.parent).free
    if size > free:
        raise UserError(
            f"cannot write {final}: it takes {size / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB free, so "
            f"{(size - free) / 1e6:,.1f} MB are missing; make room, and the same command goes on from the checkpoint before"
        )


def has_checkpoint(run: Path) -> bool:
    """Whether there is a checkpoint to go on from."""
    return bool(list_checkpoints(run))


def restore_newest(run: Path, model: BertModel, optimizer: torch.optim.Optimizer) -> Counters | None:
    """Load the newest whole checkpoint in place; None where a run has none yet. What half-written ones left is swept away.

    Damaged ones that are newer are put aside as "damaged-step-NNNNNNNN", and named. Errors: UserError where none is whole.
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
            shutil.rmtree(aside, ignore_errors=True)  # of an earlier time
            os.rename(bad, aside)
            console.warn(f"{error}; put aside as {aside.name}, going on from {folder.name}")
        return counters
    if damaged:
        raise damaged[0][1]
    return None


def load_state(folder: Path, model: BertModel, optimizer: torch.optim.Optimizer) -> Counters:
    """Restore model and optimizer in place. Errors: UserError if anything is damaged or missing."""
    _require(folder / MANIFEST)
    _require(folder / "config.json")
    loaded = load_weights(model, read_checkpoint(folder))
    if loaded.initialized or loaded.dropped:
        raise UserError(
            f"{folder} is of another model: it lacks {loaded.initialized} and has {loaded.dropped} to spare"
        )
    load_optimizer(folder, model, optimizer)
    counters = folder / "training_state" / "counters.json"
    _require(counters)
    try:
        found = config.build(Counters, storage.read_json(counters), "counters")
        places = ("epoch", "epoch_step", "tokens", "seconds", "metrics_bytes", "skipped", "consecutive_skipped")
        require_range("counters", found, *places, low=0, high=2**63)
    except UsageError as error:
        raise UserError(f"{counters} is damaged: {error}") from error
    if found.step != int(folder.name[5:]):
        raise UserError(f"{counters} is damaged: it is of step {found.step}")
    return found


def load_optimizer(
    folder: Path, model: BertModel, optimizer: torch.optim.Optimizer, grown: tuple[str, ...] = ()
) -> None:
    """Its state alone, in place, by the parameters' names. Errors: UserError if it is damaged or missing.

    grown: parameters that may have got rows since, of which the optimizer knows nothing yet.
    """
    path = folder / "training_state" / "optimizer.safetensors"
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in read_tensors(path).items():
        kind, _, name = key.partition("|")
        states.setdefault(name, {})[kind] = tensor
    known = {name: parameter for name, parameter in model.named_parameters() if name in states}
    tuned = any(parameter.requires_grad for parameter in model.encoder.parameters())
    if not known or (tuned and not any(name.startswith("encoder.") for name in known)):
        raise UserError(f"{path} is damaged: it knows nothing of the encoder")
    kinds = set.intersection(*(set(states[name]) for name in known))
    for name, parameter in known.items():  # another one is as the optimizer begins
        for kind, tensor in states[name].items():
            if tensor.ndim and name in grown and 0 < len(tensor) < len(parameter):
                new = tensor.new_zeros(len(parameter) - len(tensor), *tensor.shape[1:])
                states[name][kind] = tensor = torch.cat([tensor, new])
            fits = (
                not tensor.ndim
                if kind == "step"
                else (tensor.shape, tensor.dtype) == (parameter.shape, parameter.dtype)
            )
            if kind not in kinds or not fits:
                raise UserError(f"{path} is damaged: {kind} of {name} is {tensor.dtype} of shape {tuple(tensor.shape)}")
        optimizer.state[parameter] = {kind: tensor.to(parameter.device) for kind, tensor in states[name].items()}


def _require(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it, or give another --out to start over")


def _optimizer_tensors(optimizer: torch.optim.Optimizer, model: BertModel) -> dict[str, torch.Tensor]:
    """Every tensor of the optimizer's state as `key|parameter name`."""
    return {
        f"{key}|{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
