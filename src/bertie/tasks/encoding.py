"""What several tasks share: texts to sequences, and what the model says of sequences back to examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bertie.contracts import Sequence, Targets
from bertie.errors import UserError
from bertie.tasks.data.texts import Example
from bertie.text import framing
from bertie.text.tokenizer import Tokenizer

FIRST = np.zeros(1, np.int64)  # [CLS]: what a task of whole texts reads


def encode_texts(
    examples: list[Example],
    tokenizer: Tokenizer,
    max_length: int,
    long: framing.Long,
    step: int,
    target: Callable[[Example], Any],
) -> list[Sequence]:
    """One sequence an example of one text or two, or several windows. Errors: UserError where only some have two."""
    paired = [example.text_pair is not None for example in examples]
    if len(set(paired)) > 1:
        raise UserError(f"{examples[paired.index(False)].source}: one text, where others have two")
    parts = [framing.pieces(tokenizer, [example.text for example in examples])]
    if any(paired):
        parts.append(framing.pieces(tokenizer, [example.text_pair or "" for example in examples]))
    return [
        replace(sequence, example=number, target=target(example))
        for number, (example, *each) in enumerate(zip(examples, *parts, strict=True))
        for sequence in framing.fit(tokenizer, each, max_length, long, step)
    ]


def by_example(values: list[Any], sequences: list[Sequence], examples: int) -> list[list[Any]]:
    """What was said of each example's sequences, in their order."""
    found: list[list[Any]] = [[] for _ in range(examples)]
    for value, sequence in zip(values, sequences, strict=True):
        found[sequence.example].append(value)
    return found


def shares(sequences: list[Sequence]) -> np.ndarray:
    """float32 [S]: 1 where the target is known, 1/n for each of an example's n windows; 0 where it is not known."""
    return np.array([sequence.share * (sequence.target is not None) for sequence in sequences], np.float32)


def whole_texts(sequences: list[Sequence], index: np.ndarray, dtype: type) -> Targets:
    """One target a sequence, at its [CLS]."""
    labels = np.array([0 if sequence.target is None else sequence.target for sequence in sequences], dtype)
    return Targets(index, labels, shares(sequences))


def softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def require_number(value: Any, place: str) -> float:
    """A predicted number. Errors: UserError for what is no finite one."""
    number = number_of(str(value))
    if number is None:
        raise UserError(f"{place}: the prediction is {str(value)[:20]!r}, which is no finite number")
    return number


def number_of(value: str | None) -> float | None:
    """A label as a finite number; None where it is none."""
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return number if number is not None and np.isfinite(number) else None


def whole_number_of(value: str) -> int | None:
    """A number from 0 of at most 18 digits; None for anything else."""
    return int(value) if value.isdecimal() and len(value) <= 18 else None
