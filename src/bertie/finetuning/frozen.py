"""A frozen encoder: what it says of every example is computed once, for any number of epochs and heads."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bertie import console
from bertie.contracts import Batch, Sequence
from bertie.errors import MachineError, UserError
from bertie.finetuning.data import TaskData
from bertie.model.bert import BertModel
from bertie.tasks import Task
from bertie.tasks.inference import head_index, infer

SEQUENCES_AT_ONCE = 128  # sequences, whose states are in memory together


def cache_hidden_states(data: TaskData, model: BertModel, folder: Path | None) -> TaskData:
    """The same data, and the encoder; each sequence with its `states`, float32, in a file without a name that goes with the
    process.

    folder: where there is room for it; None: the system's place for temporary files. Errors: UserError where there is none.
    """
    sequences = [*data.train_sequences, *data.dev_sequences]
    rows = [len(sequence) if _reads_all(model) else len(data.task.head_positions(sequence)) for sequence in sequences]
    ends = np.cumsum([0, *rows])
    kept: np.ndarray | None = None
    with console.progress("encode", len(sequences), "sequences") as bar:
        for start in range(0, len(sequences), SEQUENCES_AT_ONCE):
            part = sequences[start : start + SEQUENCES_AT_ONCE]
            states = np.concatenate(list(_states(model, data.task, part)))
            if kept is None:
                kept = _room((int(ends[-1]), *states.shape[1:]), folder)
            kept[ends[start] : ends[start] + len(states)] = states
            bar.advance(len(part), "")
    assert kept is not None
    known = [replace(s, hidden_states=kept[a:b]) for s, a, b in zip(sequences, ends, ends[1:], strict=False)]
    count = len(data.train_sequences)
    return replace(data, train_sequences=known[:count], dev_sequences=known[count:], encoder=model.encoder)


def _reads_all(model: BertModel) -> bool:
    return model.reading is not None and model.reading.lstm is not None


def _states(model: BertModel, task: Task, sequences: list[Sequence]) -> Iterator[np.ndarray]:
    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        index, sizes = head_index(task, group)
        states = model.encoder_states(batch, torch.as_tensor(index, device=model.device)).float().cpu().numpy()
        return np.split(states, np.cumsum([len(s) for s in group] if _reads_all(model) else sizes)[:-1])

    yield from infer(model, sequences, compute)


def _room(shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """An array in a file: more than the memory may be asked for."""
    size, place = 4 * int(np.prod(shape)), folder or Path(tempfile.gettempdir())
    if size > (free := shutil.disk_usage(place).free):
        raise UserError(
            f"the encoder's vectors take {size / 1e9:,.1f} GB and {place} has {free / 1e9:,.1f} GB free: take fewer examples, "
            "or layers that are not concatenated or mixed"
        )
    with tempfile.TemporaryFile(dir=place) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # what is promised only may not be there when it is written
        except OSError as error:
            raise MachineError(
                f"{place} has no room for {size / 1e9:,.1f} GB of the encoder's vectors: {error.strerror}"
            ) from error
        return np.memmap(file, np.float32, "r+", shape=shape)
