"""What a request asks of a model, in no dialect's words: texts become sequences, the queue computes them, and their outputs
become vectors, scores and predictions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from bertie.contracts import Sequence
from bertie.errors import UserError
from bertie.predict.fill_mask import MaskPrediction, mask_predictions
from bertie.predict.vectors import similarities
from bertie.serve.attention import answer_bytes, encode_whole
from bertie.serve.exchange import Call
from bertie.serve.inputs import Example, characters, encode_inputs, read_inputs, texts_in
from bertie.serve.limits import Refused, Where, check_count, check_sizes, items_of, too_large
from bertie.serve.operations import MAX_TOP_K, Operation, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.tasks import Task
from bertie.tasks.aggregation import Strategy, with_aggregation
from bertie.tasks.relevance import relevance

R = TypeVar("R")
MAX_CANDIDATES = 200_000  # predicted tokens in an answer: about 20 MB of JSON
MASK_BYTES = 12 * MAX_TOP_K  # of the ids and probabilities at a mask


@dataclass(frozen=True)
class Answered(Generic[R]):
    """What a model found, and what it cost."""

    results: R
    """The results, in the order of the texts."""
    tokens: int
    """Tokens that the model read, special tokens included."""
    truncated: int
    """Texts that were truncated."""


async def embed(
    call: Call,
    model: ServedModel,
    texts: list[str],
    truncate: bool,
    param: str,
    prompt_name: str | None = None,
    where: Where | None = None,
) -> Answered[list[np.ndarray]]:
    """Return the vectors of texts.

    Args:
        call: The call.
        model: The model.
        texts: The texts.
        truncate: Whether a text may lose tokens.
        param: The field that has the texts.
        prompt_name: The model's prompt that is put before each text; None: its default.
        where: Names a text, if not all texts are the items of `param`.

    Raises:
        Refused: As `_run`, or the texts are too many or too large, or the model has no such prompt.
        UserError: A text is invalid.
    """
    try:
        prompt = model.predictor.text_embedding.prompt(prompt_name, None)
    except UserError as error:
        raise Refused(422, "input", str(error), "prompt_name") from None
    encode = partial(model.encode_texts, prompt=prompt)
    return await _embed(call, model, encode, texts, truncate, param, where)


async def embed_ids(
    call: Call, model: ServedModel, lists: list[list[int]], truncate: bool, param: str
) -> Answered[list[np.ndarray]]:
    """Return the vectors of texts that the client has tokenized. Arguments and errors as for `embed`."""
    sizes = list(map(len, lists))
    check_sizes(sizes, call.service.limits, param, "token ids")
    encode = _each(model.encode_ids, param)
    return _found(call, model, await _run(call, model, "embed", encode, list(enumerate(lists)), sizes, truncate, param))


async def rank(
    call: Call,
    model: ServedModel,
    query: str,
    documents: list[str],
    truncate: bool,
    label: str = "",
    params: tuple[str, str] = ("query", "documents"),
) -> Answered[list[float]]:
    """Return how relevant each document is for a query: what a model for pairs says, or else the similarity of vectors.

    Args:
        call: The call.
        model: The model.
        query: The query.
        documents: The documents.
        truncate: Whether a text may lose tokens.
        label: Of a classifier for pairs: the class that means "relevant".
        params: The fields of query and documents.

    Raises:
        Refused: As `embed`, or it is unclear which class means "relevant".
        UserError: A text is invalid.
    """
    check_sizes([len(query)], call.service.limits, params[0], where=lambda _: params[0])
    score = _relevance(model, label)
    if score is not None:
        pairs: list[Example] = [[query, text] for text in documents]
        predicted = await predict(call, model, pairs, truncate, params[1])
        return Answered([float(score(each)) for each in predicted.results], predicted.tokens, predicted.truncated)

    def where(number: int) -> str:
        return f"{params[1]}[{number - 1}]" if number else params[0]

    found = await _embed(call, model, model.encode_search, [query, *documents], truncate, params[1], where)
    vectors = np.stack(found.results)
    scores = similarities(model.predictor.text_embedding.similarity, vectors[:1], vectors[1:])[0].tolist()
    return Answered(scores, found.tokens, found.truncated)


def rank_method(model: ServedModel, label: str = "") -> str:
    """Return how `rank` scores documents: "cross-encoder", or how vectors are compared. Raises Refused as `rank`."""
    paired = _relevance(model, label) is not None
    return "cross-encoder" if paired else model.predictor.text_embedding.similarity


async def predict(
    call: Call,
    model: ServedModel,
    inputs: list[Example],
    truncate: bool,
    param: str,
    strategy: Strategy | None = None,
    task: Task | None = None,
) -> Answered[list[Any]]:
    """Return the predictions of a fine-tuned model.

    Args:
        call: The call.
        model: The model.
        inputs: What its task reads.
        truncate: Whether an input may lose tokens.
        param: The field that has the inputs.
        strategy: Of a tagger: how the tags of subwords become entities; None: as it was trained.
        task: Its task with other settings for prediction; None: as it is.

    Raises:
        Refused: As `embed`, or the task cannot read an input.
        UserError: An input is invalid.
    """
    try:
        task = with_aggregation(task or model.predicting, strategy)
    except UserError as error:
        raise Refused(422, "input", str(error), "aggregation_strategy") from None
    sizes = [characters(value) for value in inputs]
    check_sizes(sizes, call.service.limits, param)
    if model.predicting.unit == "example":  # each text makes a sequence, with what it belongs to
        check_count(sum(map(texts_in, inputs)), call.service.limits, param)
    examples = await call.service.offload(sum(map(texts_in, inputs)), read_inputs, model, inputs, param)
    encode = partial(encode_inputs, model, task, param)
    job = await _run(call, model, "predict", encode, examples, sizes, truncate, param)
    found = await call.service.offload(len(job.sequences), task.decode, job.results, job.sequences, examples)
    return Answered(found, *_cost(call, model, job))


async def fill_masks(
    call: Call, model: ServedModel, texts: list[str], top_k: int, param: str, candidates: np.ndarray | None = None
) -> Answered[list[list[list[MaskPrediction]]]]:
    """Return the `top_k` most probable tokens at every mask of every text. Texts are never truncated.

    candidates: int [K]: the ids of the tokens among which to choose; None: the vocabulary.

    Raises:
        Refused: As `embed`, or a text has no mask, or there are too many masks.
        UserError: A text is invalid.
    """
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, param)
    masks = sum(text.count(model.mask_token or "") for text in texts)
    if (count := max(top_k, 0 if candidates is None else len(candidates)) * masks) > MAX_CANDIDATES:
        remedy = "split the request, or lower top_k"
        raise too_large("predictions (masks × top_k)", count, MAX_CANDIDATES, remedy, param=param)
    call.reserve(MASK_BYTES * masks)
    encode = _each(partial(model.encode_masked, candidates=candidates), param)
    job = await _run(call, model, "fill-mask", encode, list(enumerate(texts)), sizes, True, param)
    results = await call.service.offload(count, _candidates, model, job.results, top_k)
    return Answered(results, *_cost(call, model, job))


async def attend(
    call: Call, model: ServedModel, texts: list[str], params: tuple[str, str]
) -> Answered[tuple[Sequence, np.ndarray]]:
    """Return the sequence of a text or of a pair of texts, and its attention: layers, heads, tokens × tokens.

    Raises:
        Refused: As `embed`, or the text is too long.
        UserError: A text is invalid.
    """
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, params[0], where=params.__getitem__)
    call.reserve(answer_bytes(model, sum(sizes)))
    job = await _run(call, model, "attention", partial(encode_whole, model), [texts], [sum(sizes)], True, params[0])
    return Answered((job.sequences[0], job.results[0]), *_cost(call, model, job))


def _relevance(model: ServedModel, label: str) -> Callable[[Any], float] | None:
    try:
        return relevance(model.task, label)
    except UserError as error:
        raise Refused(422, "input", str(error), "label") from None


def _candidates(model: ServedModel, results: list[Any], top_k: int) -> list[list[list[MaskPrediction]]]:
    return [list(mask_predictions(model.token_model(), result, top_k)) for result in results]


def _each(encode: Callable[[Any], Sequence], param: str) -> Callable[[list[tuple[int, Any]]], list[Sequence]]:
    """Return a function that encodes numbered values, and names the one that is invalid."""

    def encode_all(values: list[tuple[int, Any]]) -> list[Sequence]:
        found = []
        for number, value in values:
            try:
                found.append(encode(value))
            except UserError as error:
                where = f"{param}[{number}]"
                raise Refused(422, "input", f"{where}: {error}", where) from None
        return found

    return encode_all


async def _embed(
    call: Call,
    model: ServedModel,
    encode: Callable[[list[str]], list[Sequence]],
    texts: list[str],
    truncate: bool,
    param: str,
    where: Where | None,
) -> Answered[list[np.ndarray]]:
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, param, where=where)
    return _found(call, model, await _run(call, model, "embed", encode, texts, sizes, truncate, param, where))


async def _run(
    call: Call,
    model: ServedModel,
    operation: Operation,
    encode: Callable[[list[Any]], list[Sequence]],
    values: list[Any],
    sizes: list[int],
    truncate: bool,
    param: str,
    where: Where | None = None,
) -> QueuedJob:
    """Tokenize values and compute their sequences.

    Args:
        call: The call.
        model: The model.
        operation: What to compute.
        encode: Turns values into sequences.
        values: The values.
        sizes: Characters of each value.
        truncate: Whether a value may lose tokens.
        param: The field that has the values.
        where: Names a value, if not all are the items of `param`.

    Raises:
        Refused: The queue has no room, a value is too long, the time is over, or computing failed.
        UserError: A value is invalid.
    """
    service = call.service
    service.require_room(model)
    call.facts |= {"model": model.name, "texts": len(values)}
    started = time.monotonic()
    sequences = await service.tokenize(encode, values, sizes, call.remaining)
    call.stages["tokenize"] = time.monotonic() - started
    if not truncate:
        _refuse_truncated(model, sequences, where or items_of(param))
    job = await service.compute(model.lanes[operation], sequences, call.gone, call.remaining)
    call.stages |= {"queue": job.started - job.admitted, "compute": job.finished - job.started}
    return job


def _refuse_truncated(model: ServedModel, sequences: list[Sequence], where: Where) -> None:
    for number, sequence in enumerate(sequences):
        if sequence.truncated:
            name = where(number if sequence.example < 0 else sequence.example)
            size, most = len(sequence) + sequence.truncated, model.predictor.max_length
            message = f"{name} has {size:,} tokens, and the model reads {most:,}: shorten it, or set truncate to true"
            raise Refused(422, "too_long", message, name)


def _found(call: Call, model: ServedModel, job: QueuedJob) -> Answered[list[Any]]:
    return Answered(job.results, *_cost(call, model, job))


def _cost(call: Call, model: ServedModel, job: QueuedJob) -> tuple[int, int]:
    """Return tokens and truncated texts of a job, and count them."""
    tokens = sum(map(len, job.sequences))
    lost = {
        i if sequence.example < 0 else sequence.example
        for i, sequence in enumerate(job.sequences)
        if sequence.truncated
    }
    call.facts["tokens"] = tokens
    call.service.metrics.truncated(model.name, len(lost))
    return tokens, len(lost)
