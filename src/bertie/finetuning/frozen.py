"""Feature-based fine-tuning: cache the hidden states of a frozen encoder once, for any number of epochs and heads."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bertie.base import console
from bertie.base.contracts import Batch, Sequence
from bertie.base.errors import MachineError
from bertie.finetuning.data import TaskData
from bertie.model.model import Model
from bertie.tasks import Task
from bertie.tasks.inference import head_index, infer

SEQUENCES_AT_ONCE = 128  # sequences whose hidden states are in memory at the same time


def cache_hidden_states(data: TaskData, model: Model, folder: Path | None) -> TaskData:
    """Compute the hidden states of all sequences with the frozen encoder of `model`.

    The states, float32, are in an unnamed temporary file that disappears with the process.

    Args:
        data: The tokenized examples.
        model: The model; only its encoder is used.
        folder: The folder of the temporary file; None for the system's default.

    Returns:
        The data with `Sequence.hidden_states` of each sequence, and the encoder.

    Raises:
        MachineError: The disk has too little space.
    """
    sequences = [*data.train_sequences, *data.dev_sequences]
    pooled = model.encoder.config.pooled_token
    rows = [len(s) if _all_tokens(model) else len(data.task.head_positions(s, pooled)) for s in sequences]
    ends = np.cumsum([0, *rows])
    cache: np.ndarray | None = None
    with console.progress("encode", len(sequences), "sequences") as bar:
        for start in range(0, len(sequences), SEQUENCES_AT_ONCE):
            part = sequences[start : start + SEQUENCES_AT_ONCE]
            states = np.concatenate(_states(model, data.task, part))
            if cache is None:
                cache = _allocate((int(ends[-1]), *states.shape[1:]), folder)
            cache[ends[start] : ends[start] + len(states)] = states
            bar.advance(len(part), "")
    assert cache is not None
    cached = [replace(s, hidden_states=cache[a:b]) for s, a, b in zip(sequences, ends, ends[1:], strict=False)]
    count = len(data.train_sequences)
    return replace(data, train_sequences=cached[:count], dev_sequences=cached[count:], encoder=model.encoder)


def _all_tokens(model: Model) -> bool:
    """Return whether the hidden states of all tokens are needed, not only of those that the head reads."""
    return model.reading is not None and model.reading.all_tokens


def _states(model: Model, task: Task, sequences: list[Sequence]) -> list[np.ndarray]:
    """Return the hidden states of each sequence, float32 [rows, ...]."""

    def compute(batch: Batch, group: list[Sequence]) -> list[np.ndarray]:
        index, sizes = head_index(task, group, model.encoder.config.pooled_token)
        states = model.encoder_states(batch, torch.as_tensor(index, device=model.device)).float().cpu().numpy()
        return np.split(states, np.cumsum([len(s) for s in group] if _all_tokens(model) else sizes)[:-1])

    return infer(model, sequences, compute)


def _allocate(shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """Return an array in a file, float32: it may be larger than the memory."""
    size, place = 4 * int(np.prod(shape)), folder or Path(tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=place) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)  # a sparse file could run out of space while it is written
        except OSError as error:
            raise MachineError(
                f"{place} has no space for {size / 1e9:,.1f} GB of hidden states ({error.strerror}): use fewer examples, or "
                "layers without concatenation or scalar mix"
            ) from error
        return np.memmap(file, np.float32, "r+", shape=shape)
