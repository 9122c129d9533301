"""The micro-batches of fine-tuning: the sequences of a step, packed without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from bertie.base import runtime
from bertie.base.contracts import AnyMicroBatch, Batch, ComparedBatch, MicroBatch, Sequence, Targets
from bertie.batches.collate import collate, filler
from bertie.batches.loader import Position, Step
from bertie.finetuning import gpt
from bertie.finetuning.data import TaskData
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.config import PooledToken
from bertie.tasks import Task
from bertie.tasks.inference import gather_hidden_states, head_index
from bertie.tokenizers.batching import batches
from bertie.training.distributed import SINGLE_PROCESS, Ranks


def token_multiple(precision: runtime.Resolved, device: torch.device) -> int:
    """Return the number that the tokens of a micro-batch are padded to a multiple of.

    On a CPU, oneDNN compiles a bf16 matrix product for every new shape, which takes 10 ms on processors with AMX.
    Without padding, a step of a small BERT spent a fifth of its time on that, and its memory grew (dev/log).
    """
    return 64 if precision == "bf16" and device.type == "cpu" else 1


def batches_of(config: FinetuneConfig, task: Task, units: int) -> list[slice]:
    """Return the batches of a pass over units. A unit that would be alone, and compared with none, joins the batch before."""
    size = config.training.batch_size
    ends = [*range(size, units - (task.unit == "batch"), size), units]
    return [slice(*each) for each in pairwise([0, *ends])] if units else []


def turns(config: FinetuneConfig, data: TaskData) -> list[int]:
    """Return the number of batches of each data set in an epoch: all that it has, or its share by weight of as many in all."""
    counts = [len(batches_of(config, data.task, len(members))) for members in data.data_sets]
    ends = np.cumsum(config.weights or counts) / sum(config.weights or counts) * sum(counts)
    return np.diff(ends.round().astype(int), prepend=0).tolist()


def epoch_of(config: FinetuneConfig, data: TaskData, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the numbers of the units of each step of an epoch, which are of one data set."""
    permuted: Any = rng.permutation if config.training.shuffle else np.asarray
    steps = []
    for members, count in zip(data.data_sets, turns(config, data), strict=True):
        batches = []
        while len(batches) < count:  # its weight may take it through all units several times
            order = permuted(members)
            batches += [order[part] for part in batches_of(config, data.task, len(members))]
        steps += batches[:count]
    return [steps[i] for i in permuted(range(len(steps)))] if len(data.data_sets) > 1 else steps


@dataclass(frozen=True, eq=False)
class MicroBatcher:
    """Splits the sequences of a step into micro-batches, and pads tokens and head rows to a multiple of `multiple`."""

    config: FinetuneConfig
    task: Task
    pad_id: int
    pooled: PooledToken
    multiple: int

    def step(self, units: list[list[Sequence]], position: Position, after: Position, ranks: Ranks) -> Step:
        """Return this rank's share of the units of a step."""
        if self.task.unit == "batch":
            compared: Any = self.compared(units, ranks)
            return Step([compared], position, after, (ranks.rank,))
        share = ranks.own_range(len(units))  # may be empty in the last step of an epoch
        parts = self.split(units[share.start : share.stop]) if share else []
        numbers = tuple(share[: len(parts)])  # at most one for each unit: no other rank has them
        return Step([self.micro_batch(part) for part in parts], position, after, numbers)

    def split(self, units: list[list[Sequence]]) -> list[list[Sequence]]:
        """Group units up to `training.row_tokens` tokens, assuming sequences of maximum length. Units stay whole."""
        most = max(1, self.config.training.row_tokens // self.config.max_length)
        groups: list[list[Sequence]] = [[]]
        for unit in units:
            if groups[-1] and len(groups[-1]) + len(unit) > most:
                groups.append([])
            groups[-1] += unit
        return groups

    def compared(self, units: list[list[Sequence]], ranks: Ranks = SINGLE_PROCESS) -> ComparedBatch:
        """Return the texts of this rank's share of the units, in parts of about `training.row_tokens` tokens, and what the
        loss compares: this share with the texts of all ranks."""
        shares = [Ranks(rank, ranks.count).own_range(len(units)) for rank in range(ranks.count)]
        texts = [[sequence for i in share for sequence in units[i]] for share in shares]
        sizes, own = tuple(map(len, texts)), texts[ranks.rank]
        whole = self.task.targets(None, [sequence for of in texts for sequence in of], np.zeros(0, np.int64))
        targets = whole.of_texts(sum(sizes[: ranks.rank]), len(own), sizes * (ranks.count > 1))
        parts = batches(own, self.config.training.row_tokens)
        return ComparedBatch([self._part(part) for part in parts], {self.task.kind: targets})

    def _part(self, sequences: list[Sequence]) -> MicroBatch:
        """Return a micro-batch of texts, whose vectors are compared with those of other ones."""

        def targets(_: Batch, index: np.ndarray, sizes: list[int]) -> Targets:
            return Targets(index, np.repeat(np.arange(len(sizes)), sizes), np.zeros(len(sizes), np.float32))

        return self._collated(sequences, targets)

    def micro_batch(self, sequences: list[Sequence]) -> MicroBatch:
        return self._collated(sequences, lambda batch, index, _: self.task.targets(batch, sequences, index))

    def _collated(
        self, sequences: list[Sequence], targets_of: Callable[[Batch, np.ndarray, list[int]], Any]
    ) -> MicroBatch:
        states, limit = gather_hidden_states(sequences), self.config.max_length
        multiple = self.multiple if states is None else 1  # cached hidden states: the encoder does not run
        padding = -sum(map(len, sequences)) % multiple
        batch = collate(sequences + filler(padding, self.pad_id, limit), limit)
        targets = {self.task.kind: targets_of(batch, *head_index(self.task, sequences, self.pooled))}
        micro = MicroBatch.of(batch, targets | gpt.auxiliary_targets(self.config, batch), multiple)
        return replace(micro, hidden_states=states)


class DevBatches:
    """The micro-batches of the dev loss.

    Each is made when it is accessed, because with a frozen encoder it holds hidden states.
    """

    def __init__(self, batcher: MicroBatcher, data: TaskData, examples: set[int]):
        self.batcher = batcher
        chosen = [sequence for sequence in data.dev_sequences if sequence.example in examples]
        units = [data.task.drawn(unit, 0.0) for unit in data.task.training_units(data.task.training_sequences(chosen))]
        steps = [units[part] for part in batches_of(batcher.config, data.task, len(units))]
        self.make: Callable[[Any], AnyMicroBatch] = batcher.micro_batch
        self.parts: list[Any] = [part for step in steps for part in batcher.split(step)]
        if data.task.unit == "batch":
            self.make, self.parts = batcher.compared, steps

    def __len__(self) -> int:
        return len(self.parts)

    def has_targets(self) -> bool:
        """Return whether any sequence has a target."""
        kind = self.batcher.task.kind
        return any(self.make(part).counts[kind] > 0 for part in self.parts)

    def __getitem__(self, index: slice) -> list[AnyMicroBatch]:
        return [self.make(part) for part in self.parts[index]]
