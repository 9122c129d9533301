"""The prediction of each task for one example.

`prediction_to_json` gives the JSON object that `bertie predict` prints.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from bertie.base.console import percent
from bertie.base.report import TextSpan
from bertie.tasks.evaluation.passages import marked

ONLY = "LABEL_0"
"""The name of the only output of a head in transformers."""


@dataclass(frozen=True)
class ClassPrediction:
    """The most probable class, and the probability of every class, in the order of the task's labels."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class NumberPrediction:
    """A predicted number, in the units of the training labels."""

    score: float

    @property
    def scores(self) -> dict[str, float]:
        """The number under the name that transformers gives the only output of a head."""
        return {ONLY: self.score}


@dataclass(frozen=True)
class NumbersPrediction:
    """Several predicted numbers by name, each in the units of its training labels."""

    scores: dict[str, float]


@dataclass(frozen=True)
class ChoicePrediction:
    """The index of the most probable ending, from 0, and the probability of every ending."""

    choice: int
    probabilities: list[float]

    def marked(self, texts: tuple[str, ...]) -> list[list[TextSpan]]:
        """Return the context, with a note on the ending."""
        return [[TextSpan(texts[0], "", f"ending {self.choice}, {percent(self.probabilities[self.choice])}")]]


@dataclass(frozen=True)
class Entity:
    """Characters start to end (exclusive) of the original text, and their label.

    score is the mean probability of the tags in it. In a list of words, characters count in the words joined by spaces.
    """

    text: str
    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class TagPrediction:
    """A tag for every word, with its probability, and the entities that the tags mark.

    The words come from the input. A text is split at white space and punctuation, and every Chinese character is a word.
    entities is None if the tags mark none, as parts of speech.
    """

    tokens: list[str]
    tags: list[str]
    probabilities: list[float]
    entities: list[Entity] | None = None

    def marked(self, texts: tuple[str, ...]) -> list[list[TextSpan]]:
        """Return the text with its entities marked, or every word with its tag."""
        if self.entities is None:
            return [[TextSpan(f" {word}", "", tag) for word, tag in zip(self.tokens, self.tags, strict=True)]]
        return [marked(texts[0], "found", [(entity.start, entity.end, entity.label) for entity in self.entities])]


@dataclass(frozen=True)
class SpanCandidate:
    """A candidate answer: characters start to end (exclusive) of the context.

    An empty text means "no answer". score is the logit sum of start and end; probability is its softmax over all
    candidates of the question.
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class SpanPrediction:
    """The answer to a question; an empty string means that the context does not answer it.

    start and end are characters of the context, end exclusive. null_score is the score of "no answer" minus the score
    of the best span. guesses are the n best candidates over all windows, best first; "no answer" is one of them if the
    task has a threshold.
    """

    id: str
    answer: str
    start: int
    end: int
    probability: float
    null_score: float
    guesses: list[SpanCandidate]

    def marked(self, texts: tuple[str, ...]) -> list[list[TextSpan]]:
        """Return the question, and the context with the answer marked."""
        note = percent(self.probability) if self.answer else f"no answer, {percent(self.probability)}: "
        return [[TextSpan(texts[0])], marked(texts[1], "found" if self.answer else "", [(self.start, self.end, note)])]


@dataclass(frozen=True)
class SimilarityPrediction:
    """The cosine similarity of two texts, and their vectors, float32 [D] each."""

    similarity: float
    vectors: tuple[np.ndarray, np.ndarray] = field(repr=False)


@dataclass(frozen=True)
class RelevancePrediction:
    """How relevant a text is for a query, higher is more, without a unit; and for an example with negatives, how relevant these
    are."""

    score: float
    negatives: tuple[float, ...] = field(default=(), repr=False)


def prediction_to_json(prediction: Any) -> dict[str, Any]:
    """Return a prediction's fields for JSON: those of its `repr`."""
    values = asdict(prediction)
    return rounded({each.name: values[each.name] for each in fields(prediction) if each.repr})


def rounded(value: Any) -> Any:
    """Return a value for JSON, whose numbers have the digits of float32, as models compute: 0.1 for 0.10000000149011612."""
    return json.loads(json.dumps(value), parse_float=lambda number: float(str(np.float32(number))))
