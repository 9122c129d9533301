"""What several tasks share: texts to sequences, and what the model says of sequences back to examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bertie.contracts import Sequence, Targets
from bertie.errors import UserError
from bertie.tasks.data.texts import Example
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer

FIRST = np.zeros(1, np.int64)  # [CLS]: what a task of whole texts reads


def encode_texts(
    examples: list[Example],
    tokenizer: Tokenizer,
    max_length: int,
    long: truncation.Truncation,
    step: int,
    target: Callable[[Example], Any],
    paired: bool | None,
) -> list[Sequence]:
    """One sequence an example of one text or two, or several windows.

    paired: whether those of training have two, if that is known. Errors: UserError for an example that is otherwise than
    those, or than the others.
    """
    wanted = paired if paired is not None else any(example.text_pair is not None for example in examples)
    for example in examples:
        if (example.text_pair is not None) != wanted:
            others = "others have" if paired is None else "the examples of training have"
            have, had = ("one text", "two") if wanted else ("two texts", "one")
            raise UserError(f"{example.source}: {have}, where {others} {had}")
    parts = [truncation.tokenize(tokenizer, [example.text for example in examples])]
    if wanted:
        parts.append(truncation.tokenize(tokenizer, [example.text_pair or "" for example in examples]))
    return [
        replace(sequence, example=number, target=target(example))
        for number, (example, *each) in enumerate(zip(examples, *parts, strict=True))
        for sequence in truncation.to_sequences(tokenizer, each, max_length, long, step)
    ]


def count_truncated(sequences: list[Sequence]) -> int:
    """Of how many examples something did not fit."""
    return len({sequence.example for sequence in sequences if sequence.truncated})


def by_example(values: list[Any], sequences: list[Sequence], examples: int) -> list[list[Any]]:
    """What was said of each example's sequences, in their order."""
    found: list[list[Any]] = [[] for _ in range(examples)]
    for value, sequence in zip(values, sequences, strict=True):
        found[sequence.example].append(value)
    return found


def example_weights(sequences: list[Sequence]) -> np.ndarray:
    """float32 [S]: 1 where the target is known, 1/n for each of an example's n windows; 0 where it is not known."""
    return np.array([sequence.weight * (sequence.target is not None) for sequence in sequences], np.float32)


def cls_targets(sequences: list[Sequence], index: np.ndarray, dtype: type) -> Targets:
    """One target a sequence, at its [CLS]."""
    labels = np.array([0 if sequence.target is None else sequence.target for sequence in sequences], dtype)
    return Targets(index, labels, example_weights(sequences))


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)
