"""Helpers that several tasks share: encoding texts as sequences, and grouping outputs by example."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from bertie.base.contracts import Sequence, Targets
from bertie.base.errors import UsageError, UserError, shorten
from bertie.model.config import PooledToken
from bertie.model.heads.text_pooling import TaskPooling, for_one_text, pooling_facts
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")


class TextTask(Protocol):
    """A task on one text or a pair, whose head reads one vector."""

    @property
    def truncation(self) -> truncation.Truncation: ...
    @property
    def doc_stride(self) -> int: ...
    @property
    def pooling(self) -> TaskPooling: ...
    @property
    def paired(self) -> bool | None: ...

    def gold(self, examples: list[Any]) -> list[Any]:
        """Return the target of each example, or None if it has no label."""
        ...

    def predicted(self, logits_C: np.ndarray, /) -> Any:
        """Return the prediction of an example from the outputs of the head, float32 [C]."""
        ...


@property
def text_input_form(task: TextTask) -> str:
    """How an input in memory looks: `Task.input_form` of a task on texts."""
    return {True: "a list of two texts", None: "a text, or a list of two", False: "a text"}[task.paired]


def pooled_position(task: object, sequence: Sequence, pooled: PooledToken) -> np.ndarray:  # noqa: ARG001
    """Return the only position that the head of a sequence-level task reads, int64 [1]: [CLS] or the last [SEP]."""
    return np.array([0 if pooled == "first" else len(sequence) - 1], np.int64)


def encode_texts(task: TextTask, examples: list[Any], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
    """Encode examples of one text or a pair, as `Task.encode`: one sequence each, or several windows.

    `TextTask.gold` gives the target.

    Raises:
        UserError: An example has one text and should have two, or the reverse.
    """
    paired = task.paired
    two_texts = paired if paired is not None else any(example.text_pair is not None for example in examples)
    for example in examples:
        if (example.text_pair is not None) != two_texts:
            others = "the other examples" if paired is None else "the training examples"
            actual, expected = ("one text", "two") if two_texts else ("two texts", "one")
            raise UserError(f"{example.source}: found {actual}, but {others} have {expected}")
    parts = [truncation.tokenize(tokenizer, [example.text for example in examples])]
    if two_texts:
        parts.append(truncation.tokenize(tokenizer, [example.text_pair or "" for example in examples]))
    return [
        replace(sequence, example=number, target=target)
        for number, (target, *texts) in enumerate(zip(task.gold(examples), *parts, strict=True))
        for sequence in truncation.to_sequences(
            tokenizer, texts, max_length, task.truncation, task.doc_stride, pooling_facts(task.pooling).separate
        )
    ]


def decode_texts(
    task: TextTask, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Any]
) -> list[Any]:
    """Return the prediction of each example, as `Task.decode`. The outputs of several windows are averaged."""
    return [task.predicted(np.concatenate(rows).mean(0)) for rows in by_example(outputs, sequences, len(examples))]


def are_pairs(task: TextTask, examples: list[Any]) -> bool:
    """Return whether training examples have two texts. Raises UsageError if they should attend to each other, and do not."""
    other = for_one_text(task.pooling)
    if other != task.pooling and examples[0].text_pair is None:
        problem = f'task.pooling is "{task.pooling}", which is between two texts, and {examples[0].source} has one'
        raise UsageError(f'{problem}: set task.pooling to "{other}"')
    return examples[0].text_pair is not None


def count_truncated(sequences: list[Sequence]) -> int:
    """Return the number of examples that lost tokens to truncation."""
    return len({sequence.example for sequence in sequences if sequence.truncated})


def by_example(values: list[Any], sequences: list[Sequence], examples: int) -> list[list[Any]]:
    """Group the values of sequences by example, keeping their order. examples: how many there are."""
    groups: list[list[Any]] = [[] for _ in range(examples)]
    for value, sequence in zip(values, sequences, strict=True):
        groups[sequence.example].append(value)
    return groups


def example_weights(sequences: list[Sequence]) -> np.ndarray:
    """Return the loss weight of each sequence, float32 [S].

    Each of the n windows of an example has 1/n; sequences without a target have 0.
    """
    return np.array([sequence.weight * (sequence.target is not None) for sequence in sequences], np.float32)


def cls_targets(sequences: list[Sequence], index: np.ndarray) -> Targets:
    """Return one class per sequence, at its [CLS]. index: int64 [S], the rows of [CLS]."""
    labels = np.array([0 if sequence.target is None else sequence.target for sequence in sequences], np.int64)
    return Targets(index, labels, example_weights(sequences))


def row_targets(sequences: list[Sequence], index: np.ndarray, outputs: int) -> Targets:
    """Return a row of targets per sequence, at its [CLS], float32 [S, C]. index: int64 [S], the rows of [CLS]."""
    unknown = np.zeros(outputs, np.float32)  # weighs nothing
    rows = [unknown if sequence.target is None else sequence.target for sequence in sequences]
    return Targets(index, np.stack(rows), example_weights(sequences))


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the sigmoid, float64, without overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * logits.astype(np.float64))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis, float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def as_given(task: T, *facts: object) -> T:  # noqa: ARG001
    """Return the task: `Task.as_trained` of a task that needs nothing from training to read and encode examples, and
    `Task.of_model` of one that leaves nothing to the model."""
    return task


def by_unit(task: Any, sequences: list[Sequence]) -> list[list[Sequence]]:
    """Return the sequences one by one, or all of an example together: `Task.training_units`."""
    if task.unit == "sequence":
        return [[sequence] for sequence in sequences]
    grouped: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        grouped.setdefault(sequence.example, []).append(sequence)
    return list(grouped.values())


def as_whole(task: object, unit: list[Sequence], number: float) -> list[Sequence]:  # noqa: ARG001
    """Return the whole unit: `Task.drawn`."""
    return unit


def queries(task: object, examples: list[Any]) -> list[tuple[str, ...]]:  # noqa: ARG001
    """Return the query of each example, if queries have several texts, which may be those of others, too: `Task.together`."""
    repeated = len({example.text for example in examples}) < len(examples)
    return [(example.text,) if repeated else example.texts for example in examples]


def all_texts(task: object, examples: list[Any]) -> list[tuple[str, ...]]:  # noqa: ARG001
    """Return all texts of each example: `Task.together`."""
    return [example.texts for example in examples]


def no_relevance(task: object, label: str) -> None:  # noqa: ARG001
    """Return None: there are no classes. Raises UsageError for a label."""
    if label:
        raise UsageError(f"label is {shorten(label)!r}, and the model has no classes: omit it")


def paired_as_trained(task: Any, trained: Any) -> Any:
    """Return the task, for as many texts as the trained one: `Task.as_trained` of a task on texts."""
    return replace(task, paired=trained.paired if task.paired is None else task.paired)
