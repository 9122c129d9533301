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

from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.contracts import Sequence
from bertie.errors import NonFiniteError, UserError
from bertie.predict.fill_mask import MaskPrediction, mask_predictions
from bertie.predict.vectors import similarities
from bertie.serve.attention import answer_bytes, encode_whole
from bertie.serve.exchange import Call
from bertie.serve.inputs import Example, characters, encode_inputs, read_inputs, refuse_unfit, texts_in
from bertie.serve.limits import Refused, Where, check_count, check_sizes, items_of, too_large
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import MAX_TOP_K, Operation, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.serve.scales import Scores, ScoreScale, scores_of
from bertie.serve.worker import Failure
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
        Refused: As `run`, or the texts are too many or too large, or the model has no such prompt.
        UserError: A text is invalid.
    """
    encode = partial(model.encode_texts, prompt=prompt_of(model, prompt_name))
    return await _embed(call, model, encode, texts, truncate, param, where)


def prompt_of(model: ServedModel, name: str | None) -> str:
    """Return the model's prompt of this name; None: its default. Raises Refused if the model has no such prompt."""
    try:
        return model.predictor.text_embedding.prompt(name, None)
    except UserError as error:
        raise Refused(422, "input", str(error), "prompt_name") from None


async def rank(
    call: Call,
    model: ServedModel,
    query: str,
    documents: list[str],
    truncate: bool,
    label: str = "",
    params: tuple[str, str] = ("query", "documents"),
    scale: ScoreScale = "model",
    where: Where | None = None,
) -> Answered[list[float]]:
    """Return how relevant each document is for a query, as `score_pairs`. params: the fields of query and documents."""
    check_sizes([len(query)], call.service.limits, params[0], where=lambda _: params[0])
    return await score_pairs(call, model, [query], documents, truncate, label, params, scale, where)


async def score_pairs(
    call: Call,
    model: ServedModel,
    first: list[str],
    second: list[str],
    truncate: bool,
    label: str,
    params: tuple[str, str],
    scale: ScoreScale,
    where: Where | None = None,
) -> Answered[list[float]]:
    """Return the score of each pair of texts: what a model for pairs says, or else the similarity of vectors.

    Args:
        call: The call.
        model: The model.
        first: One text, such as a query, or as many as in `second`.
        second: Texts, such as documents.
        truncate: Whether a text may lose tokens.
        label: Of a classifier for pairs: the class that means "relevant".
        params: The fields of both.
        scale: The scale of the scores of a model for pairs.
        where: Names a text of `second`, if not all are the items of their field.

    Raises:
        Refused: As `embed`, or it is unclear which class means "relevant".
        UserError: A text is invalid.
    """
    score = _relevance(model, label)
    firsts = first * len(second) if len(first) == 1 else first
    if score is not None:
        pairs: list[Example] = [list(pair) for pair in zip(firsts, second, strict=True)]
        scored = await outputs(call, model, pairs, truncate, params[1], scale, where)
        return Answered([float(score(each)) for each in scored.results], scored.tokens, scored.truncated)
    count, where_second = len(first), where or items_of(params[1])

    def where_any(number: int) -> str:
        if number >= count:
            return where_second(number - count)
        return params[0] if count == 1 else f"{params[0]}[{number}]"

    prompts = [prompt_of(model, name) for name in ("query", "document")]
    texts = [*((prompts[0], text) for text in first), *((prompts[1], text) for text in second)]
    sizes = [len(text) for _, text in texts]
    check_sizes(sizes, call.service.limits, params[1], where=where_any)
    job = await run(call, model, "embed", model.encode_prompted, texts, sizes, truncate, params[1], where_any)
    compare = partial(_pair_similarities, model.predictor.text_embedding.similarity)
    scores = await call.service.offload(len(second), compare, np.stack(job.results), count)
    return Answered(scores, *cost(call, model, job))


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
    where: Where | None = None,
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
        where: Names an input, if not all are the items of `param`.

    Raises:
        Refused: As `embed`, or the task cannot read an input.
        UserError: An input is invalid.
    """
    try:
        task = with_aggregation(task or model.predicting, strategy)
    except UserError as error:
        raise Refused(422, "input", str(error), "aggregation_strategy") from None
    job, examples = await _run_task(call, model, task, inputs, truncate, param, where)
    found = await call.service.offload(len(job.sequences), task.decode, job.results, job.sequences, examples)
    return Answered(found, *cost(call, model, job))


async def outputs(
    call: Call,
    model: ServedModel,
    inputs: list[Example],
    truncate: bool,
    param: str,
    scale: ScoreScale,
    where: Where | None = None,
) -> Answered[list[Scores]]:
    """Return the scores of texts or pairs of texts, from a task that predicts classes or a number for them.

    The arguments are those of `predict`. scale: the scale of the scores.

    Raises:
        Refused: As `predict`, or the task predicts something else.
        UserError: An input is invalid.
    """
    task = model.predicting
    if task.facts.shape != "text":
        message = f"the model {model.name} predicts {task.facts.predicts}, not classes or numbers of texts"
        raise Refused(422, "operation", f"{message}: use /v1/predict", "model")
    job, examples = await _run_task(call, model, task, inputs, truncate, param, where)
    found = await call.service.offload(len(job.sequences), scores_of, task, job, examples, scale)
    return Answered(found, *cost(call, model, job))


async def _run_task(
    call: Call, model: ServedModel, task: Task, inputs: list[Example], truncate: bool, param: str, where: Where | None
) -> tuple[QueuedJob, list[Any]]:
    """Compute the outputs of a task's head. Returns the job and the examples. Errors as for `predict`."""
    sizes, where = [characters(value) for value in inputs], where or items_of(param)
    check_sizes(sizes, call.service.limits, param, where=where)
    if model.predicting.unit == "example":  # each text makes a sequence, with what it belongs to
        check_count(sum(map(texts_in, inputs)), call.service.limits, param)
    examples = await call.service.offload(sum(map(texts_in, inputs)), read_inputs, model, inputs, where)
    encode = partial(encode_inputs, model, task, param, where)
    return await run(call, model, "predict", encode, examples, sizes, truncate, param, where), examples


async def fill_masks(
    call: Call,
    model: ServedModel,
    texts: list[str],
    top_k: int,
    param: str,
    candidates: np.ndarray | None = None,
    where: Where | None = None,
) -> Answered[list[list[list[MaskPrediction]]]]:
    """Return the `top_k` most probable tokens at every mask of every text. Texts are never truncated.

    candidates: int [K]: the ids of the tokens among which to choose; None: the vocabulary. where: as for `embed`.

    Raises:
        Refused: As `embed`, or a text has no mask, or there are too many masks.
        UserError: A text is invalid.
    """
    sizes, where = list(map(len, texts)), where or items_of(param)
    check_sizes(sizes, call.service.limits, param, where=where)
    masks = sum(text.count(model.mask_token or "") for text in texts)
    if (count := max(top_k, 0 if candidates is None else len(candidates)) * masks) > MAX_CANDIDATES:
        remedy = "split the request, or lower top_k"
        raise too_large("predictions (masks × top_k)", count, MAX_CANDIDATES, remedy, param=param)
    call.reserve(MASK_BYTES * masks)
    encode = each_of(partial(model.encode_masked, candidates=candidates), where)
    job = await run(call, model, "fill-mask", encode, list(enumerate(texts)), sizes, True, param, where)
    results = await call.service.offload(count, _candidates, model, job.results, top_k)
    return Answered(results, *cost(call, model, job))


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
    encode = partial(encode_whole, model)
    job = await run(call, model, "attention", encode, [texts], [sum(sizes)], True, params[0], lambda _: params[0])
    return Answered((job.sequences[0], job.results[0]), *cost(call, model, job))


def _pair_similarities(similarity: Similarity, vectors: np.ndarray, count: int) -> list[float]:
    """Compare the first `count` vectors with the others: the only one with each, or each with its own."""
    first, second = vectors[:count], vectors[count:]
    if count == 1:
        return json_numbers(similarities(similarity, first, second)[0])
    rows = zip(first, second, strict=True)
    return json_numbers(np.concatenate([similarities(similarity, a[None], b[None])[0] for a, b in rows]))


def _relevance(model: ServedModel, label: str) -> Callable[[Any], float] | None:
    try:
        return relevance(model.task, label)
    except UserError as error:
        raise Refused(422, "input", str(error), "label") from None


def _candidates(model: ServedModel, results: list[Any], top_k: int) -> list[list[list[MaskPrediction]]]:
    return [list(mask_predictions(model.token_model(), result, top_k)) for result in results]


def each_of(encode: Callable[[Any], Sequence], where: Where) -> Callable[[list[tuple[int, Any]]], list[Sequence]]:
    """Return a function that encodes numbered values, and names the one that is invalid."""

    def encode_all(values: list[tuple[int, Any]]) -> list[Sequence]:
        found = []
        for number, value in values:
            try:
                found.append(encode(value))
            except UserError as error:
                raise Refused(422, "input", f"{where(number)}: {error}", where(number)) from None
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
    return _found(call, model, await run(call, model, "embed", encode, texts, sizes, truncate, param, where))


async def run(
    call: Call,
    model: ServedModel,
    operation: Operation,
    encode: Callable[[list[Any]], list[Sequence]],
    values: list[Any],
    sizes: list[int],
    truncate: bool,
    param: str,
    where: Where | None = None,
    check: Callable[[list[Sequence]], None] = lambda _: None,
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
        check: Refuses sequences whose results would be too large.

    Raises:
        Refused: The queue has no room, a value is too long, the time is over, or computing failed.
        UserError: A value is invalid.
    """
    service = call.service
    service.require_room(model.lanes[operation], call.spent)
    call.facts |= {"model": model.name, "texts": len(values)}
    started = time.monotonic()
    sequences = await service.tokenize(encode, values, sizes, call.remaining)
    call.stages["tokenize"] = time.monotonic() - started
    refuse_unfit(model, sequences, truncate, where or items_of(param))
    check(sequences)
    job = await service.compute(model.lanes[operation], sequences, call.gone, call.remaining, call.spent)
    call.job = job
    _refuse_failed(job, where or items_of(param))
    call.stages |= {"queue": job.started - job.admitted, "compute": job.finished - job.started}
    return job


def _refuse_failed(job: QueuedJob, where: Where) -> None:
    for number, (sequence, result) in enumerate(zip(job.sequences, job.results, strict=True)):
        if isinstance(result, Failure):
            name = where(number if sequence.example < 0 else sequence.example)
            problem, remedy = "the model could not compute it", "its operator finds the error in the log"
            if isinstance(result.error, NonFiniteError):
                problem, remedy = "the outputs of the model for it are NaN or infinity", "leave it out, or change it"
            raise Refused(500, "engine", f"{name}: {problem}: {remedy}", name)


def _found(call: Call, model: ServedModel, job: QueuedJob) -> Answered[list[Any]]:
    return Answered(job.results, *cost(call, model, job))


def cost(call: Call, model: ServedModel, job: QueuedJob) -> tuple[int, int]:
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
