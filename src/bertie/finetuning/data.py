"""Labelled examples → what the model reads of them, once for any number of fine-tunings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertie import console, seeding, storage
from bertie.checkpoints.folder import Checkpoint
from bertie.contracts import Sequence
from bertie.errors import UsageError, UserError
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.transformer import Encoder
from bertie.tasks import Task
from bertie.tasks.data.rows import first_few, shorten, valid_examples
from bertie.tasks.encoding import count_truncated

Examples = str | Path | Iterable[Any]


@dataclass(frozen=True, eq=False)
class TaskData:
    """task: as the training examples define it; train_sequences: those to train on; start: the checkpoint's folder.
    encoder: of what is frozen the one that the sequences' states are of."""

    task: Task
    dev: list[Any]
    train_sequences: list[Sequence]
    dev_sequences: list[Sequence]
    model_folder: Path
    encoder: Encoder | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Of all that a run starts from and is judged by: the model's weights, the examples as it reads them, those of dev
        as they are given."""
        head = [storage.sha256(self.model_folder / "model.safetensors"), len(self.train_sequences), self.task.labels]
        digest = hashlib.sha256(repr(head).encode())
        for sequence in [*self.train_sequences, *self.dev_sequences]:
            digest.update(f"{len(sequence)} ".encode() + _bytes(sequence.target) + sequence.input_ids.tobytes())
        for example in self.dev:
            digest.update(repr(replace(example, source="")).encode())
        return digest.hexdigest()


def _bytes(target: Any) -> bytes:
    if isinstance(target, tuple):
        return b" ".join(map(_bytes, target))
    return target.tobytes() if isinstance(target, np.ndarray) else repr(target).encode()


def load_task_data(config: FinetuneConfig, train: Examples, dev: Examples, checkpoint: Checkpoint) -> TaskData:
    """Errors: UserError, UsageError where the examples do not suit the task, each other or the model."""
    most = checkpoint.config.max_position_embeddings
    if not 4 <= config.max_length <= most:
        raise UsageError(f"max_length is {config.max_length}: the model reads 4 to {most} tokens")
    train_examples, dev_examples = _examples(train, config), _examples(dev, config)
    if 0 < config.max_train_examples < len(train_examples):
        chosen = seeding.generator(0, seeding.SUBSET).permutation(len(train_examples))[: config.max_train_examples]
        train_examples = [train_examples[i] for i in sorted(chosen)]
    task = config.task.fit(train_examples)
    task.validate(dev_examples)
    encoded = [task.encode(part, checkpoint.tokenizer, config.max_length) for part in (train_examples, dev_examples)]
    learned = task.training_sequences(encoded[0])
    for name, examples, sequences in zip(("training", "dev"), (train_examples, dev_examples), encoded, strict=True):
        if cut := count_truncated(sequences):
            console.warn(f"{cut:,} of {len(examples):,} {name} examples are cut to fit into {config.max_length} tokens")
        bare = {checkpoint.tokenizer.cls_id, checkpoint.tokenizer.sep_id}
        if empty := len({s.example for s in sequences if len(s) <= 3 and bare.issuperset(s.input_ids.tolist())}):
            console.warn(f"{empty:,} of {len(examples):,} {name} examples have no text")
    known = {sequence.example for sequence in learned}
    if left_out := [each.source for number, each in enumerate(train_examples) if number not in known]:
        told = f"their answer is not in their context ({first_few(left_out, len(left_out))})"
        if config.strict:
            raise UserError(f"{console.plural(len(left_out), 'training example')} cannot be learned: {told}")
        console.warn(f"{len(left_out):,} of {len(train_examples):,} training examples are left out: {told}")
    if not learned:
        raise UserError("there is nothing to train on")
    if task.unit == "batch" and (min(config.grid.batch_size or (config.training.batch_size,)) < 2 or len(learned) < 4):
        raise UsageError(
            "pairs without scores are told from the others of their batch: give 2 of them, and batches of 2, at least"
        )
    return TaskData(task, dev_examples, learned, encoded[1], model_folder=checkpoint.folder)


def _examples(source: Examples, config: FinetuneConfig) -> list[Any]:
    reader = config.task.reader
    if not isinstance(source, str | Path):
        return valid_examples(reader.values(source), "the examples")
    found = valid_examples(reader.read(Path(source)), str(source), config.strict)
    first = {field.name: getattr(found[0], field.name) for field in fields(found[0]) if field.name != "source"}
    told = ", ".join(f"{name} {shorten(repr(value))}" for name, value in first.items() if value is not None)
    console.info(f"{source}: {console.plural(len(found), 'example')}, the first with {told}")
    return found
