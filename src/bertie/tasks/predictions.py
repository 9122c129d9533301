"""What each task predicts for one example. `prediction_to_json` gives the JSON object that `bertie predict` prints."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ClassPrediction:
    """The most probable class, and the probability of every class in the order of the task's labels."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class NumberPrediction:
    """A predicted number, in the units of the training labels."""

    score: float


@dataclass(frozen=True)
class ChoicePrediction:
    """The number of the most probable ending, counted from 0, and the probability of every ending."""

    choice: int
    probabilities: list[float]


@dataclass(frozen=True)
class TagPrediction:
    """A tag for every word, with its probability. Words are the given ones, or the whitespace-separated words of a text."""

    tokens: list[str]
    tags: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class SpanCandidate:
    """A span of the context: characters start to end (exclusive). An empty text means "no answer"."""

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class SpanPrediction:
    """The answer to a question, "" if the context has none.

    null_score: score of "no answer" minus score of the best span. guesses: the n best spans over all windows together
    with "no answer", best first.
    """

    id: str
    answer: str
    start: int
    end: int
    probability: float
    null_score: float
    guesses: list[SpanCandidate]


@dataclass(frozen=True)
class SimilarityPrediction:
    """The cosine similarity of two texts, and their vectors, float32 [D] each."""

    similarity: float
    vectors: tuple[np.ndarray, np.ndarray]


def prediction_to_json(prediction: Any) -> dict[str, Any]:
    """Return a prediction's fields for JSON. Vectors are left out."""
    return {name: value for name, value in asdict(prediction).items() if name != "vectors"}
