"""Predictions of tasks, tokens at masks, and the attention of a text.

N  heads of a layer    L  tokens of the text
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.predict.fill_mask import MaskPredictions, mask_predictions
from bertie.serve.ask import Answered, Ask, answered, each_of, run
from bertie.serve.limits import Refused, refusing, too_large
from bertie.serve.numbers import base64_of, raw
from bertie.serve.operations import MAX_TOP_K, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.tasks import Task
from bertie.tasks.aggregation import with_aggregation

Value = str | int | float | bool | None
Values = Value | list[Value] | dict[str, Value]
Nested = Value | list[Values] | dict[str, Values]
RowValue = Value | list[Nested] | dict[str, Nested]  # bounded, so that no row is too deep for those who read it
Example = str | list[str] | dict[str, RowValue]
PLACE = re.compile("^(the examples|example ([0-9]+)): ")  # how readers name the place of an error
MAX_CANDIDATES = 200_000  # predicted tokens in an answer: about 20 MB of JSON
MASK_BYTES = 12 * MAX_TOP_K  # of the ids and probabilities at a mask
DECIMALS = 5  # of an attention probability
TOKENS_PER_CHARACTER = 4  # at most, but for rare characters: byte-level BPE has up to one token per byte


async def predict(ask: Ask) -> Answered[list[Any]]:
    """Return the predictions of a fine-tuned model.

    Raises:
        Refused: As `embed`, or the task cannot read an input.
        UserError: An input is invalid.
    """
    model = ask.model("predict")
    with refusing("aggregation_strategy"):
        task = with_aggregation(ask.task or model.predicting, ask.strategy)
    job, examples = await run_task(ask, model, task)
    return await answered(ask, model, job, task.decode, job.results, job.sequences, examples)


async def run_task(ask: Ask, model: ServedModel, task: Task) -> tuple[QueuedJob, list[Any]]:
    """Compute the outputs of a task's head. Returns the job and the examples. Errors as for `predict`."""
    inputs = ask.values
    sizes, texts = [characters(value) for value in inputs], sum(map(_texts_in, inputs))
    ask.check_sizes(sizes)
    if model.predicting.unit == "example":  # each text makes a sequence
        ask.check_count(texts)
    examples = await ask.call.offload(texts, _read, ask, model, inputs)
    return await run(ask, model, "predict", partial(_encode, ask, model, task), examples, sizes), examples


def _read(ask: Ask, model: ServedModel, inputs: list[Any]) -> list[Any]:
    """Read the inputs as the task does. Raises Refused, naming the first unfit input."""
    examples: list[Any] = []
    try:
        for example in model.predicting.reader.values(inputs):
            examples.append(example)
    except UserError as error:
        raise _unfit(model, error, ask.name(len(examples))) from None
    return examples


def _encode(ask: Ask, model: ServedModel, task: Task, examples: list[Any]) -> list[Sequence]:
    """Return the sequences of examples. Raises Refused, naming the first unfit input, or else the field of all."""
    try:
        return task.encode(examples, model.predictor.tokenizer, model.predictor.max_length)
    except UserError as error:
        place = PLACE.match(error.problem)
        name = ask.name(int(place[2]) - 1) if place and place[2] else next(iter(ask.fields))
        raise _unfit(model, error, name) from None


def _unfit(model: ServedModel, error: UserError, name: str) -> Refused:
    """Return the refusal of an input that the task cannot read, in words of the API."""
    # The remedy of the error is for the command line.
    remedy = f"; give {model.predicting.input_form}" if error.remedy else ""
    return Refused(422, "input", PLACE.sub(f"{name}: ", error.problem) + remedy, name)


def characters(value: Any) -> int:
    """Return the characters of an input. An empty word and a number count as one, so that their number is limited too."""
    if isinstance(value, str):
        return len(value)
    return sum(len(part) or 1 if isinstance(part, str) else 1 for part in _parts(value))


def _texts_in(value: Any) -> int:
    return sum(isinstance(part, str) for part in _parts(value))


def _parts(value: Any) -> Iterator[Value]:
    """Yield the texts, words and numbers of an input, also those within lists and objects."""
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part)
    else:
        yield value


async def fill_masks(ask: Ask) -> Answered[list[MaskPredictions]]:
    """Return the `top_k` most probable tokens at every mask of every text. Texts are never truncated.

    Raises:
        Refused: As `embed`, or a text has no mask, or there are too many masks.
        UserError: A text is invalid.
    """
    model, texts = ask.model("fill-mask"), ask.values
    ask.check_sizes(sizes := list(map(len, texts)))
    masks = sum(text.count(model.mask_token or "") for text in texts)
    if (count := max(ask.top_k, 0 if ask.candidates is None else len(ask.candidates)) * masks) > MAX_CANDIDATES:
        remedy = "split the request, or lower top_k"
        raise too_large("predictions (masks × top_k)", count, MAX_CANDIDATES, remedy, param=next(iter(ask.fields)))
    ask.call.reserve(MASK_BYTES * masks)
    encode = each_of(ask, partial(model.encode_masked, candidates=ask.candidates))
    job = await run(ask, model, "fill-mask", encode, list(enumerate(texts)), sizes)
    return await answered(ask, model, job, _candidates, model, job.results, ask.top_k, size=count)


def _candidates(model: ServedModel, results: list[Any], top_k: int) -> list[MaskPredictions]:
    return [mask_predictions(model.token_model(), result, top_k) for result in results]


async def attend(ask: Ask) -> Answered[tuple[Sequence, Float[np.ndarray, "layers N L L"]]]:
    """Return the sequence of a text, or of a pair of texts, and its attention. It grows with layers × heads × tokens².

    Raises:
        Refused: As `embed`, or the text is too long.
        UserError: A text is invalid.
    """
    model, texts = ask.model("attention"), ask.values
    ask.check_sizes(sizes := list(map(len, texts)))
    most, config = model.attention_tokens or 0, model.transformer()
    tokens = min(most, TOKENS_PER_CHARACTER * sum(sizes) + 4)  # 4: special tokens of a pair
    ask.call.reserve(4 * config.num_hidden_layers * config.num_attention_heads * tokens**2)
    job = await run(ask, model, "attention", partial(_encode_whole, model, most), [texts], [sum(sizes)])
    return await answered(ask, model, job, lambda: (job.sequences[0], job.results[0]))


def _encode_whole(model: ServedModel, most: int, values: list[list[str]]) -> list[Sequence]:
    [texts] = values
    sequence = model.encode_attention(texts)
    if len(sequence) > most:
        problem = f"{len(sequence):,} tokens, but the model shows the attention of at most {most:,}: shorten it"
        raise Refused(413, "too_many_tokens", problem, "text")
    return [sequence]


def attention_json(attention: Float[np.ndarray, "layers N L L"], encoding_format: str) -> Any:
    """Return the probabilities as a value for JSON: lists, already encoded, or base64."""
    if encoding_format == "base64":
        return base64_of(attention)
    # Layer by layer: as objects of Python, all numbers would take ten times their memory.
    return raw(layer.astype(np.float64).round(DECIMALS).tolist() for layer in attention)
