"""The inputs of tasks: their JSON, how large they are, how the task reads them, and the words for those that it cannot read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from bertie.contracts import Sequence
from bertie.errors import UserError
from bertie.serve.limits import TRUNCATE, Refused, Where
from bertie.serve.operations import ServedModel
from bertie.tasks import Task

Value = str | int | float | bool | None
Values = Value | list[Value] | dict[str, Value]
Nested = Value | list[Values] | dict[str, Values]
RowValue = Value | list[Nested] | dict[str, Nested]  # bounded, so that no row is too deep for those who read it
Example = str | list[str] | dict[str, RowValue]
PLACE = re.compile("^(the examples|example ([0-9]+)): ")  # how readers name the place of an error


def read_inputs(model: ServedModel, inputs: list[Example], where: Where) -> list[Any]:
    """Read the inputs as the task does. Raises Refused, naming the first unfit input."""
    examples: list[Any] = []
    try:
        for example in model.predicting.reader.values(inputs):
            examples.append(example)
    except UserError as error:
        raise _unfit(model, error, where(len(examples))) from None
    return examples


def encode_inputs(model: ServedModel, task: Task, param: str, where: Where, examples: list[Any]) -> list[Sequence]:
    """Return the sequences of examples. Raises Refused, naming the first unfit input, or else `param`, the field of all."""
    try:
        return task.encode(examples, model.predictor.tokenizer, model.predictor.max_length)
    except UserError as error:
        place = PLACE.match(error.problem)
        raise _unfit(model, error, where(int(place[2]) - 1) if place and place[2] else param) from None


def refuse_unfit(model: ServedModel, sequences: list[Sequence], truncate: bool, where: Where) -> None:
    """Check that each value has tokens, and loses some only if it may. Raises Refused, naming the first that does not fit."""
    for number, sequence in enumerate(sequences):
        if len(sequence) and (truncate or not sequence.truncated):
            continue
        name = where(number if sequence.example < 0 else sequence.example)
        if not len(sequence):  # the model would read nothing
            raise Refused(422, "input", f"{name} has no tokens, and the model adds none: leave it out", name)
        size, most = len(sequence) + sequence.truncated, model.predictor.max_length
        message = f"{name} has {size:,} tokens, and the model reads {most:,}: shorten it, or {TRUNCATE}"
        raise Refused(422, "too_long", message, name)


def _unfit(model: ServedModel, error: UserError, where: str) -> Refused:
    """Return the refusal of an input that the task cannot read, in words of the API."""
    problem = PLACE.sub(f"{where}: ", error.problem)
    # The remedy of the error is for the command line.
    remedy = f"; give {model.predicting.input_form}" if error.remedy else ""
    return Refused(422, "input", f"{problem}{remedy}", where)


def characters(value: Example) -> int:
    """Return the characters of an input. An empty word and a number count as one, so that their number is limited too."""
    if isinstance(value, str):
        return len(value)
    return sum(len(each) or 1 if isinstance(each, str) else 1 for each in _values(value))


def texts_in(value: Example) -> int:
    """Return the number of texts in an input."""
    return sum(isinstance(each, str) for each in _values(value))


def _values(value: Any) -> Iterator[Value]:
    """Yield the texts, words and numbers of an input, also those within lists and objects."""
    if isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _values(part)
    else:
        yield value
