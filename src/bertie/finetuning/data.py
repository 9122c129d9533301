"""Read and tokenize the training and dev examples, once for any number of runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console, seeding
from bertie.base.contracts import Sequence
from bertie.base.errors import UsageError, UserError, first_few, shorten
from bertie.checkpoints import sentence_transformers_reader
from bertie.checkpoints.find import weights_fingerprint
from bertie.checkpoints.read import Checkpoint
from bertie.checkpoints.vocabulary_growth import with_added_tokens
from bertie.corpus.coverage import report_unknown
from bertie.examples.in_memory import require_list
from bertie.finetuning import gpt
from bertie.finetuning.held_out import SplitExamples, hold_out
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.attention.segment_memory import require_first_segment
from bertie.model.encoder import Encoder
from bertie.model.heads.text_pooling import pooling_facts
from bertie.tasks import Task
from bertie.tasks.encoding import count_truncated
from bertie.tasks.scoring import labeled_examples, training_examples
from bertie.tasks.task_json import with_pooling
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import special_tokens

Examples = str | Path | Iterable[Any]
"""A file, or Python values. Of training examples also a list of files: each is a data set."""


def files_of(train: Examples) -> list[Path]:
    """Return the files of training examples; none of examples in memory."""
    given = [train] if isinstance(train, str | Path) else train
    are_files = isinstance(given, list | tuple) and all(isinstance(each, str | Path) for each in given)
    return [Path(each) for each in given] if are_files else []


@dataclass(frozen=True, eq=False)
class TaskData:
    """The tokenized examples of a fine-tuning."""

    task: Task
    """The task, fitted on the training examples."""
    split: SplitExamples
    """The examples to train on, the dev examples, and the test examples, if there are any."""
    train_sequences: list[Sequence]
    """The sequences to train on."""
    dev_sequences: list[Sequence]
    """The sequences of the dev examples."""
    checkpoint: Checkpoint
    """The checkpoint that training starts from, with the tokens that the task adds to its vocabulary."""
    encoder: Encoder | None = None
    """The frozen encoder that computed the cached hidden states of the sequences; None if there are none."""

    @property
    def dev(self) -> list[Any]:
        """The dev examples."""
        return self.split.dev

    @cached_property
    def units(self) -> list[list[Sequence]]:
        """What training shuffles and counts: see `Task.training_units`. None is of two data sets."""
        data_sets = groupby(self.train_sequences, lambda sequence: self.split.data_set[sequence.example])
        return [unit for _, part in data_sets for unit in self.task.training_units(list(part))]

    @cached_property
    def data_sets(self) -> list[np.ndarray]:
        """The numbers of the units of each data set, int64, if the loss compares the texts of a batch; otherwise all in one."""
        number = [self.split.data_set[unit[0].example] * (self.task.unit == "batch") for unit in self.units]
        return [np.flatnonzero(np.equal(number, each)) for each in sorted({*number})]

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything that training and evaluation depend on beside the configuration: the initial weights,
        the tokenized examples, and the dev and test examples themselves."""
        head = [weights_fingerprint(self.checkpoint.files), len(self.train_sequences), self.task.labels]
        sizes = [len(each) for each in self.data_sets if len(self.data_sets) > 1]
        digest = hashlib.sha256(repr([*head, *sizes]).encode())
        for sequence in [*self.train_sequences, *self.dev_sequences]:
            digest.update(f"{len(sequence)} ".encode() + _bytes(sequence.target) + sequence.input_ids.tobytes())
        for example in [*self.dev, *self.split.test]:
            digest.update(repr(replace(example, source="")).encode())
        return digest.hexdigest()


def _bytes(target: Any) -> bytes:
    if isinstance(target, tuple):
        return b" ".join(map(_bytes, target))
    return target.tobytes() if isinstance(target, np.ndarray) else repr(target).encode()


def load_task_data(
    config: FinetuneConfig,
    train: Examples,
    dev: Examples | None,
    checkpoint: Checkpoint,
    test: Examples | None = None,
) -> TaskData:
    """Read the examples, fit the task and tokenize. Warns of truncated and empty examples.

    Args:
        config: The configuration.
        train: The training examples: a file, several, or Python values.
        dev: The dev examples; None: a part of the training examples.
        checkpoint: The checkpoint whose tokenizer and maximum length are used.
        test: The test examples; None: a part of the training examples, if the configuration says so.

    Raises:
        UserError: The examples do not fit the task or each other.
        UsageError: The configuration does not fit the model or the examples.
    """
    checkpoint = gpt.prepared(config, checkpoint)
    _check_length(config, checkpoint)
    task, split = _examples(config, train, dev, test, checkpoint)
    train_examples, dev_examples = split.train, split.dev
    own = task.own_tokenizer(checkpoint.tokenizer)
    if own.splits_characters and not checkpoint.tokenizer.splits_characters:
        texts = [text for example in train_examples[:1000] for text in example.texts]
        before, now = (sum(map(len, tokenizer.encode(texts))) for tokenizer in (checkpoint.tokenizer, own))
        longer = f"{now / max(before, 1):.1f} times as many as with {checkpoint.folder.name}'s own tokenizer"
        console.info(f"the training examples: {now / len(texts):.0f} tokens each on average, {longer}")
    checkpoint = replace(checkpoint, tokenizer=own)
    if tokens := task.added_tokens:
        before, checkpoint = checkpoint.tokenizer.size, with_added_tokens(checkpoint, tokens)
        if new := checkpoint.tokenizer.vocabulary[before:]:
            added = f"{console.plural(len(new), 'token')} to the vocabulary: {first_few(new, len(new), ' ')}"
            console.info(f"added {added}")
    compared = [*train_examples, *split.left_out] if task.unit == "batch" else train_examples
    encoded = [task.encode(part, checkpoint.tokenizer, config.max_length) for part in (compared, dev_examples)]
    encoded[0] = [sequence for sequence in encoded[0] if sequence.example < len(train_examples)]
    train_sequences = task.training_sequences(encoded[0])
    for name, examples, sequences in zip(("training", "dev"), (train_examples, dev_examples), encoded, strict=True):
        if truncated := count_truncated(sequences):
            console.warn(f"truncated {truncated:,} of {len(examples):,} {name} examples to {config.max_length} tokens")
        report_unknown(checkpoint.tokenizer, _token_counts(checkpoint.tokenizer, sequences), f"the {name} examples")
    used = {sequence.example for sequence in train_sequences}
    if skipped := [example.source for number, example in enumerate(train_examples) if number not in used]:
        reason = f"{task.untrainable} ({first_few(skipped, len(skipped))})"
        if config.strict:
            raise UserError(f"cannot train on {console.plural(len(skipped), 'training example')}: {reason}")
        console.warn(f"skipped {len(skipped):,} of {len(train_examples):,} training examples: {reason}")
    if not train_sequences:
        raise UserError("there is nothing to train on")
    if task.shows_example:
        first = [sequence for sequence in train_sequences if sequence.example == train_sequences[0].example]
        texts = [" ".join(checkpoint.tokenizer.tokens(sequence.input_ids)) for sequence in first[:2]]
        shown = " | ".join(text if len(text) <= 160 else f"{text[:160]} …" for text in texts)
        console.info(f"the first example as the model reads it: {shown}")
    data = TaskData(task, split, train_sequences, encoded[1], checkpoint)
    _check_batches(config, data)
    return data


def _examples(
    config: FinetuneConfig, train: Examples, dev: Examples | None, test: Examples | None, checkpoint: Checkpoint
) -> tuple[Task, SplitExamples]:
    """Return the task, fitted on the training examples, and all examples. Arguments and errors as of `load_task_data`."""
    sources, task, read = files_of(train) or [list(require_list(train))], config.task, []
    for source in sources:
        task, labeled = training_examples(task, source, config.strict)
        _report(source, task, labeled)
        read.append(labeled)
    split = hold_out(config, task, sources, read, (dev is not None, test is not None))
    if 0 < config.max_train_examples < len(split.train):
        order = seeding.generator(0, seeding.SUBSET).permutation(len(split.train))
        chosen = sorted(order[: config.max_train_examples])
        console.info(f"training on a random subset of {len(chosen):,} of {len(split.train):,} examples")
        kept = {name: [getattr(split, name)[i] for i in chosen] for name in ("train", "data_set")}
        texts = task.together(split.train)
        asked = {texts[i] for i in chosen}
        left_out = tuple(split.train[i] for i in sorted(order[len(chosen) :]) if texts[i] in asked)
        split = replace(split, **kept, left_out=left_out)
    files = sentence_transformers_reader.read(checkpoint.contents, checkpoint.config.hidden_size)
    task = with_pooling(task, checkpoint.config).of_model(files, checkpoint.folder).fit(split.train)
    for name, source in (("dev", dev), ("test", test)):
        if source is not None:
            split = replace(split, **{name: labeled_examples(task.reader, source, config.strict)})
            _report(source, task, getattr(split, name))
        if part := getattr(split, name):
            task.validate(part)
    return task, split


def _check_length(config: FinetuneConfig, checkpoint: Checkpoint) -> None:
    """Raise UsageError if the model does not read sequences of `max_length` tokens."""
    limit = checkpoint.config.max_position_embeddings
    pooling = pooling_facts(config.task.text_pooling)
    shortest = special_tokens(checkpoint.tokenizer, 2, pooling.separate) + 1
    if not shortest <= config.max_length <= limit:
        raise UsageError(f"max_length is {config.max_length}: the model reads {shortest} to {limit} tokens")
    if config.task.text_pooling is not None and pooling.one_token:
        require_first_segment(checkpoint.config, config.max_length)
    longest = checkpoint.tokenizer.longest
    if longest is not None and config.max_length > longest:
        where = f"{checkpoint.folder}/tokenizer_config.json: model_max_length is {longest}"
        raise UsageError(f"max_length is {config.max_length}, and {where}: give at most that, or change it")


def _check_batches(config: FinetuneConfig, data: TaskData) -> None:
    """Raise UsageError if a batch cannot have what it needs, or if `weights` do not fit the data sets."""
    smallest_batch = min(config.grid.batch_size or (config.training.batch_size,))
    if data.task.unit == "batch" and (smallest_batch < 2 or min(map(len, data.data_sets)) < 2):
        raise UsageError("pairs without scores need negatives from their batch: at least 2 pairs and a batch size of 2")
    wrong = [each for each in config.weights if not 0 < each < np.inf]
    if wrong or len(config.weights) not in (0, len(data.data_sets)):
        each = f"give a number above 0 for each data set that has turns: {len(data.data_sets)}"
        raise UsageError(f"weights is {list(config.weights)}: {each}")


def _token_counts(tokenizer: Tokenizer, sequences: list[Sequence]) -> dict[str, Any]:
    """Count the tokens, words and [UNK] of tokenized examples, for `unknown_share`."""
    unknown = tokenizer.unk_id if tokenizer.special.unk else -1
    specials = np.setdiff1d(tokenizer.special_ids, [unknown])
    counts = dict.fromkeys(("tokens", "words", "unknown"), 0)
    for sequence in sequences:
        text = ~np.isin(sequence.input_ids, specials)
        counts["tokens"] += int(text.sum())
        counts["words"] += int((text & sequence.word_starts).sum())
        counts["unknown"] += int((sequence.input_ids == unknown).sum())
    return {"splits": {"all": counts}}


def _report(source: Examples, task: Task, examples: list[Any]) -> None:
    """Say how many examples a file has, and how its first row was read."""
    if isinstance(source, str | Path):
        shown = [field.name for field in fields(examples[0]) if field.repr and field.name != "source"]
        first = {name: value for name in shown if (value := getattr(examples[0], name)) not in (None, ())}
        values = ", ".join(f"{name} {shorten(repr(value))}" for name, value in first.items())
        uses = ", ".join(f"{use} {name!r}" for use, name in task.reader.columns(Path(source)).items())
        columns = f"; columns: {uses}" if uses else ""
        console.info(f"{source}: {console.plural(len(examples), 'example')}, the first with {values}{columns}")
