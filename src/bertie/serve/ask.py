"""Requests in the terms of bertie, and the way of every request: its sizes are checked, its texts become sequences, and the
queue computes these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from bertie.base.contracts import Sequence
from bertie.base.errors import NonFiniteError, UserError
from bertie.serve.exchange import Call
from bertie.serve.limits import Refused, too_large, unfit
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.serve.worker import Failure
from bertie.tasks import Task
from bertie.tasks.aggregation import Strategy

R = TypeVar("R")
T = TypeVar("T")
ScoreScale = Literal["model", "raw", "sigmoid"]
"""model: probabilities of classes, and a number as `Predictor.predict` returns it. raw: the outputs of the head, before softmax
or sigmoid. sigmoid: as model, but of a number the sigmoid of the output, which other servers return for rerankers."""


@dataclass(frozen=True)
class Ask:
    """A request. A dialect maps the fields of its own messages to these, and `embed`, `rank`, `classify` … read them."""

    call: Call
    """The request."""
    model_name: str
    """Name of the model; empty: the only one."""
    fields: Mapping[str, Any]
    """Texts for the model, by the client's name of the field, which messages name: a list of texts, or a single one. Fields
    that are None are left out."""
    truncate: bool = True
    """Whether a text with more tokens than the model reads is truncated, or else refused."""
    most_tokens: int | None = None
    """Tokens of a sequence that are read, special tokens included; None: as many as the model reads."""
    prompt_name: str | None = None
    """The model's prompt that is put before each text."""
    input_type: str | None = None
    """Instead of it, the kind of input that the prompt is for, such as "query"."""
    default_prompt: bool = True
    """Whether texts get the model's default prompt if no other is named."""
    dimensions: int | None = None
    """Width of the vectors; None: the model's own."""
    normalize: bool | None = None
    """Whether vectors have length 1; None: if the files of the model say so, or the vectors are shortened."""
    scale: ScoreScale = "model"
    """The scale of scores."""
    label: str = ""
    """Of a classifier for pairs: the class that means "relevant"."""
    strategy: Strategy | None = None
    """Of a tagger: how the tags of subwords become entities; None: as it was trained."""
    task: Task | None = None
    """The model's task with other settings for prediction; None: as it is."""
    top_k: int = 5
    """Predictions for each mask."""
    candidates: np.ndarray | None = None
    """int [K]: the ids among which to choose for a mask; None: the vocabulary."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The client's words, by ours, where these differ: names of the fields above, and how to have texts truncated."""

    def __post_init__(self) -> None:
        named = {name: value for name, value in self.fields.items() if value is not None}
        object.__setattr__(self, "fields", named)

    @cached_property
    def values(self) -> list[Any]:
        """The texts for the model, in order."""
        return [text for value in self.fields.values() for text in (value if isinstance(value, list) else [value])]

    def name(self, number: int) -> str:
        """Return the field of a value, such as "input[3]"."""
        for name, value in self.fields.items():
            count = len(value) if isinstance(value, list) else 1
            if number < count:
                return f"{name}[{number}]" if isinstance(value, list) else name
            number -= count
        raise IndexError(number)

    def word(self, ours: str) -> str:
        """Return the client's word for one of ours."""
        return self.words.get(ours, ours)

    def refused(self, ours: str, problem: str, reason: str = "validation") -> Refused:
        """Return the refusal of a field, by our name for it."""
        return unfit(self.word(ours), problem, reason)

    def model(self, operation: Operation) -> ServedModel:
        """Return the model. Raises Refused if it is unknown, broken, or does not offer the operation."""
        model = self.call.service.model(self.model_name, operation)
        return model if self.most_tokens is None else model.reading_at_most(self.most_tokens)

    def check_sizes(self, sizes: list[int], what: str = "characters") -> None:
        """Check the values before they are tokenized.

        Args:
            sizes: Characters of each.
            what: "characters", or "token ids", which are limited alike.

        Raises:
            Refused: There are too many values or characters, status 413, or no value at all.
        """
        limits, param = self.call.service.limits, list(self.fields)[-1]
        if not sizes:
            raise unfit(param, "there is no text: give at least one")
        self.check_count(len(sizes))
        if (longest := max(sizes)) > limits.max_text_characters:
            name, most = self.name(sizes.index(longest)), limits.max_text_characters
            raise too_large(f"{what} in one text", longest, most, f"shorten {name}", "--max-text-characters", name)
        if (count := sum(sizes)) > limits.max_characters:
            raise too_large(what, count, limits.max_characters, "split the request", "--max-characters", param)

    def check_count(self, count: int) -> None:
        """Raise Refused, with status 413, if these are too many texts."""
        if count > (most := self.call.service.limits.max_items):
            raise too_large("texts", count, most, "split the request", "--max-items", list(self.fields)[-1])


@dataclass(frozen=True)
class Answered(Generic[R]):
    """The results of a model, and their cost."""

    model: ServedModel
    """The model."""
    results: R
    """The results, in the order of the texts."""
    tokens: int
    """Tokens that the model read, special tokens included."""
    truncated: int
    """Texts that were truncated."""

    def with_results(self, results: T) -> Answered[T]:
        """Return other results of the same cost."""
        return Answered(self.model, results, self.tokens, self.truncated)


async def answered(
    ask: Ask, model: ServedModel, job: QueuedJob, finish: Callable[..., R], *arguments: Any, size: int = 0
) -> Answered[R]:
    """Return what `finish` makes of the results of a job, with the cost of the job, which is counted.

    size: results that it makes, if these are more than sequences.
    """
    tokens = sum(map(len, job.sequences))
    truncated = len({_number(i, sequence) for i, sequence in enumerate(job.sequences) if sequence.truncated})
    ask.call.facts["tokens"] = tokens
    ask.call.service.metrics.truncated(model.name, truncated)
    return Answered(model, await ask.call.offload(max(size, len(job.sequences)), finish, *arguments), tokens, truncated)


async def run(
    ask: Ask,
    model: ServedModel,
    operation: Operation,
    encode: Callable[[list[Any]], list[Sequence]],
    values: list[Any],
    sizes: list[int],
    check: Callable[[list[Sequence]], None] = lambda _: None,
) -> QueuedJob:
    """Tokenize values and compute their sequences.

    Args:
        ask: The names of the values, and whether they may lose tokens.
        model: The model.
        operation: What to compute.
        encode: Turns values into sequences.
        values: The values.
        sizes: Characters of each value.
        check: Refuses sequences whose results would be too large.

    Raises:
        Refused: The queue has no room, a value is too long, the time is over, or computing failed.
        UserError: A value is invalid.
    """
    call, lane = ask.call, model.lanes[operation]
    call.service.require_room(lane, call.spent)
    call.facts |= {"model": model.name, "texts": len(values)}
    started = time.monotonic()
    sequences = await call.service.tokenize(encode, values, sizes, call.remaining)
    call.stages["tokenize"] = time.monotonic() - started
    for number, sequence in enumerate(sequences):
        if not len(sequence) or (sequence.truncated and not ask.truncate):
            raise _unfit(ask, model, sequence, ask.name(_number(number, sequence)))
    check(sequences)
    job = await call.service.compute(lane, sequences, call.gone, call.remaining, call.spent)
    for number, (sequence, result) in enumerate(zip(sequences, job.results, strict=True)):
        if isinstance(result, Failure):
            raise _failed(result, ask.name(_number(number, sequence)))
    call.stages |= {"queue": job.started - job.admitted, "compute": job.finished - job.started}
    return job


def each_of(ask: Ask, encode: Callable[[Any], Sequence]) -> Callable[[list[tuple[int, Any]]], list[Sequence]]:
    """Return a function that encodes numbered values, and names the one that is invalid."""

    def encode_all(values: list[tuple[int, Any]]) -> list[Sequence]:
        sequences = []
        for number, value in values:
            try:
                sequences.append(encode(value))
            except UserError as error:
                raise unfit(ask.name(number), str(error), "input") from None
        return sequences

    return encode_all


def _number(number: int, sequence: Sequence) -> int:
    """Return the number of the value that a sequence belongs to. number: its own."""
    return number if sequence.example < 0 else sequence.example


def _unfit(ask: Ask, model: ServedModel, sequence: Sequence, name: str) -> Refused:
    if not len(sequence):  # the model would read nothing
        return Refused(422, "input", f"{name} has no tokens, and the model adds none: leave it out", name)
    size, most = len(sequence) + sequence.truncated, model.predictor.max_length
    remedy = f"shorten it, or {ask.word('set truncate to true')}"
    return Refused(422, "too_long", f"{name} has {size:,} tokens, but the model reads {most:,}: {remedy}", name)


def _failed(failure: Failure, name: str) -> Refused:
    problem, remedy = "the model could not compute it", "see the error in the log of the server"
    if isinstance(failure.error, NonFiniteError):
        problem, remedy = "the outputs of the model for it are NaN or infinity", "leave it out, or change it"
    return Refused(500, "engine", f"{name}: {problem}: {remedy}", name)
