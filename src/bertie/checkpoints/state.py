"""What a run needs to go on exactly where it stood: model, optimizer, counters; whole or not there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from bertie import storage
from bertie.checkpoints.folder import (
    MANIFEST,
    load_weights,
    read_checkpoint,
    read_tensors,
    save_tensors,
    seal,
    states,
    write_model,
)
from bertie.errors import UserError
from bertie.model.bert import BertModel
from bertie.text.tokenizer import Tokenizer


def save_state(
    run: Path,
    step: int,
    model: BertModel,
    optimizer: torch.optim.Optimizer,
    tokenizer: Tokenizer,
    labels: tuple[str, ...],
    counters: dict[str, Any],
    keep: int,
) -> None:
    """Write checkpoints/step-NNNNNNNN atomically, then remove all but the newest `keep`."""
    checkpoints = run / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    final = checkpoints / f"step-{step:08d}"
    if not final.exists():
        with storage.atomic_folder(final) as folder:
            write_model(folder, model, tokenizer, labels, f"Training state after step {step}.")
            state = folder / "training_state"
            state.mkdir()
            save_tensors(_optimizer_tensors(optimizer, model), state / "optimizer.safetensors")
            storage.write_json(state / "counters.json", counters)
            seal(folder)
    for old in states(run)[:-keep]:
        doomed = old.with_name(f".{old.name}.tmp-{os.getpid()}")  # half removed must not look like a checkpoint
        os.rename(old, doomed)
        shutil.rmtree(doomed)


def newest_state(run: Path) -> Path | None:
    """The newest complete checkpoint of a run; half-written ones are swept away."""
    checkpoints = run / "checkpoints"
    if not checkpoints.is_dir():
        return None
    storage.remove_leftovers(checkpoints)
    return next(reversed(states(run)), None)


def load_state(folder: Path, model: BertModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore model and optimizer in place; returns the counters. Errors: UserError if anything is damaged or missing."""
    _require(folder / MANIFEST)
    _require(folder / "config.json")
    loaded = load_weights(model, read_checkpoint(folder))
    if loaded.fresh or loaded.dropped:
        raise UserError(f"{folder} is of another model: it lacks {loaded.fresh} and has {loaded.dropped} to spare")
    tensors = read_tensors(folder / "training_state" / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        state = {key: tensor for key, tensor in tensors.items() if key.split("|")[1] == name}
        optimizer.state[parameter] = {key.split("|")[0]: tensor.to(parameter.device) for key, tensor in state.items()}
    _require(folder / "training_state" / "counters.json")
    return storage.read_json(folder / "training_state" / "counters.json")


def _require(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it, or remove its checkpoint to go on from the one before")


def _optimizer_tensors(optimizer: torch.optim.Optimizer, model: BertModel) -> dict[str, torch.Tensor]:
    """Every tensor of the optimizer's state as `key|parameter name`."""
    return {
        f"{key}|{name}": tensor.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state.get(parameter, {}).items()
    }
