"""The endpoints: what each does with a decoded request."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
import numpy as np
from starlette.responses import Response

from bertie.contracts import Sequence
from bertie.errors import UserError
from bertie.inspect.sentences import shown_tokens, special_places
from bertie.model.config import TransformerConfig
from bertie.predict.fill_mask import mask_predictions
from bertie.predict.vectors import similarities
from bertie.serve import messages as m
from bertie.serve.attention import answer_bytes, attention_response, encode_whole
from bertie.serve.exchange import Call, Handler, json_response
from bertie.serve.inputs import characters, encode_inputs, read_inputs, texts_in
from bertie.serve.limits import Refused, Where, check_count, check_sizes, items_of, too_large
from bertie.serve.operations import MAX_TOP_K, Operation, ServedModel
from bertie.serve.queue import QueuedJob
from bertie.tasks import Task
from bertie.tasks.aggregation import with_aggregation
from bertie.tasks.relevance import relevance

MAX_CANDIDATES = 200_000  # predicted tokens in an answer: about 20 MB of JSON
MASK_BYTES = 12 * MAX_TOP_K  # of the ids and probabilities at a mask
COSINE_BYTES = 24  # of a cosine: in JSON, and as a number
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of the API."""

    method: str
    path: str
    handler: Handler
    summary: str
    response: Any
    """Type of the response; None: plain text."""
    request: type | None = None
    """Type of the message in the body; None: no body."""
    protected: bool = True
    """Whether it needs a key, if the server has keys."""
    statuses: tuple[int, ...] = ()
    """Statuses of errors, besides those that every endpoint with a body has."""


async def embeddings(call: Call, request: m.EmbeddingsRequest) -> m.EmbeddingsResponse:
    """Return the vectors of texts or of token ids."""
    model = call.service.model(request.model, "embed")
    if request.dimensions not in (None, model.vector_width):
        message = f"dimensions: the vectors have width {model.vector_width}, and cannot be shortened: omit it"
        raise Refused(422, "dimensions", message, "dimensions")
    values = [request.input] if isinstance(request.input, str) else request.input
    kinds = {type(value) for value in values}
    if kinds == {int}:
        values, kinds = [cast(list[int], values)], {list}
    if len(kinds) != 1:
        problem = "is empty" if not kinds else "mixes texts and token ids"
        raise Refused(422, "validation", f"input {problem}: give texts, or token ids", "input")
    if kinds == {str}:
        encode = partial(model.encode_texts, prompt=_prompt(model, request.prompt_name))
        job = await _embed(call, model, encode, cast(list[str], values), request.truncate, "input")
    else:
        if request.prompt_name is not None:
            raise Refused(422, "validation", "prompt_name: token ids have no prompt: give texts", "prompt_name")
        job = await _embed_ids(call, model, cast(list[list[int]], values), request.truncate)
    data = await call.service.offload(len(job.results), _embeddings, job.results, request.encoding_format)
    return m.EmbeddingsResponse(data, model=model.name, usage=_usage(call, model, job.sequences))


async def similarity(call: Call, request: m.SimilarityRequest) -> Response:
    """Compare the vectors of texts with those of other texts, or with each other."""
    model = call.service.model(request.model, "embed")
    texts, count = [*request.texts, *(request.others or ())], len(request.texts)

    def where(number: int) -> str:
        return f"texts[{number}]" if number < count else f"others[{number - count}]"

    with call.service.buffer() as reserve:
        reserve(COSINE_BYTES * count * (len(texts) - count or count))
        encode = partial(model.encode_texts, prompt=_prompt(model, request.prompt_name))
        job = await _embed(call, model, encode, texts, request.truncate, "texts", where)
        usage = _usage(call, model, job.sequences)
        message = m.SimilarityResponse([], model=model.name, usage=usage)
        compare = partial(similarities, model.predictor.text_embedding.similarity)
        return await call.service.offload(len(texts), _similarities, compare, message, np.stack(job.results), count)


async def rerank(call: Call, request: m.RerankRequest) -> m.RerankResponse:
    """Sort documents by their relevance for a query."""
    model = call.service.model(request.model, "embed")
    texts = [document if isinstance(document, str) else document.text for document in request.documents]
    check_sizes([len(request.query)], call.service.limits, "query", where=lambda _: "query")
    try:
        score = relevance(model.task, request.label)
    except UserError as error:
        raise Refused(422, "input", str(error), "label") from None
    if score is None:
        where = lambda number: f"documents[{number - 1}]" if number else "query"  # noqa: E731
        given = [request.query, *texts]
        job = await _embed(call, model, model.encode_search, given, request.truncate, "documents", where)
        vectors = np.stack(job.results)
        scores = similarities(model.predictor.text_embedding.similarity, vectors[:1], vectors[1:])[0].tolist()
    else:
        pairs: list[m.Example] = [[request.query, text] for text in texts]
        job, predictions = await _predict(call, model, model.predicting, pairs, request.truncate, "documents")
        scores = [float(score(prediction)) for prediction in predictions]
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[: request.top_n]
    shown = request.return_documents
    results = [m.RerankResult(i, scores[i], m.Document(texts[i]) if shown else None) for i in best]
    return m.RerankResponse(call.id, results, model=model.name, usage=_usage(call, model, job.sequences))


async def predict(call: Call, request: m.PredictRequest) -> m.PredictResponse:
    """Predict with a fine-tuned model."""
    model = call.service.model(request.model, "predict")
    try:
        task = with_aggregation(model.predicting, request.aggregation_strategy)
    except UserError as error:
        raise Refused(422, "input", str(error), "aggregation_strategy") from None
    job, predictions = await _predict(call, model, task, request.inputs, request.truncate, "inputs")
    kind, usage = model.predicting.kind, _usage(call, model, job.sequences)
    return m.PredictResponse(kind, predictions, model=model.name, usage=usage)


async def fill_mask(call: Call, request: m.FillMaskRequest) -> m.FillMaskResponse:
    """Predict the tokens at masks."""
    model = call.service.model(request.model, "fill-mask")
    sizes = list(map(len, request.inputs))
    check_sizes(sizes, call.service.limits, "inputs")
    masks = sum(text.count(model.mask_token or "") for text in request.inputs)
    count = request.top_k * masks
    if count > MAX_CANDIDATES:
        remedy = "split the request, or lower top_k"
        raise too_large("predictions (masks × top_k)", count, MAX_CANDIDATES, remedy, param="inputs")
    encode = _each(model.encode_masked, "inputs")
    with call.service.buffer() as reserve:
        reserve(MASK_BYTES * masks)
        job = await _run(call, model, "fill-mask", encode, list(enumerate(request.inputs)), sizes)
        results = await call.service.offload(count, _candidates, model, job.results, request.top_k)
        return m.FillMaskResponse(results, model=model.name, usage=_usage(call, model, job.sequences))


async def attention(call: Call, request: m.AttentionRequest) -> Response:
    """Return the attention probabilities of all heads in a text, or in a pair of texts."""
    model = call.service.model(request.model, "attention")
    texts = [request.text] if request.text_pair is None else [request.text, request.text_pair]
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, "text", where=lambda number: ("text", "text_pair")[number])
    with call.service.buffer() as count:
        count(answer_bytes(model, sum(sizes)))
        job = await _run(call, model, "attention", partial(encode_whole, model), [texts], [sum(sizes)])
        [sequence], [found] = job.sequences, job.results
        usage = _usage(call, model, job.sequences)
        read, (layers, heads) = (model.predictor.tokenizer, sequence.input_ids), found.shape[:2]
        tokens, special = shown_tokens(*read), special_places(*read)
        message = m.AttentionResponse(tokens, special, layers, heads, "", model=model.name, usage=usage)
        return await call.service.offload(found.size, attention_response, message, found, request.encoding_format)


async def models(call: Call, _: None) -> m.ModelList:
    """List the models."""
    return m.ModelList([_card(call, model) for model in call.service.models.values()])


async def model(call: Call, _: None) -> m.ModelCard:
    """Describe a model."""
    name = call.request.path_params["model"]
    if name not in call.service.models:
        raise Refused(404, "model", f"no model has this name: the models are {', '.join(call.service.models)}", "model")
    return _card(call, call.service.models[name])


async def livez(call: Call, _: None) -> Response:
    """Tell whether the process works. If not, restart it."""
    return _status(call, call.service.live_problems())


async def readyz(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    return _status(call, call.service.ready_problems())


async def metrics(call: Call, _: None) -> Response:
    """Return the metrics for Prometheus."""
    call.service.metrics.ready.set(not call.service.ready_problems())
    return Response(call.service.metrics.text(), headers={"content-type": PROMETHEUS})


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "List the models", m.ModelList),
    Endpoint("GET", "/v1/models/{model:path}", model, "Describe a model", m.ModelCard, statuses=(404,)),
    Endpoint("POST", "/v1/embeddings", embeddings, "Vectors of texts", m.EmbeddingsResponse, m.EmbeddingsRequest),
    Endpoint("POST", "/v1/similarity", similarity, "Cosines of texts", m.SimilarityResponse, m.SimilarityRequest),
    Endpoint("POST", "/v1/rerank", rerank, "Documents by relevance", m.RerankResponse, m.RerankRequest),
    Endpoint("POST", "/v1/predict", predict, "Predictions of a fine-tuned model", m.PredictResponse, m.PredictRequest),
    Endpoint("POST", "/v1/fill-mask", fill_mask, "Tokens at masks", m.FillMaskResponse, m.FillMaskRequest),
    Endpoint("POST", "/v1/attention", attention, "Attention of all heads", m.AttentionResponse, m.AttentionRequest),
    Endpoint("GET", "/livez", livez, "Liveness", m.Status, protected=False, statuses=(503,)),
    Endpoint("GET", "/readyz", readyz, "Readiness", m.Status, protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus", None),
)


def _embeddings(vectors: list[np.ndarray], encoding_format: str) -> list[m.Embedding]:
    if encoding_format == "base64":
        encoded = [base64.b64encode(vector.astype("<f4").tobytes()).decode() for vector in vectors]
    else:
        encoded = [vector.tolist() for vector in vectors]
    return [m.Embedding(number, vector) for number, vector in enumerate(encoded)]


def _prompt(model: ServedModel, name: str | None) -> str:
    try:
        return model.predictor.text_embedding.prompt(name, None)
    except UserError as error:
        raise Refused(422, "input", str(error), "prompt_name") from None


def _similarities(
    compare: Callable[[np.ndarray, np.ndarray], np.ndarray],
    message: m.SimilarityResponse,
    vectors: np.ndarray,
    count: int,
) -> Response:
    """Compare the first `count` vectors with the others, or with each other."""
    rows = compare(vectors[:count], vectors[count:] if count < len(vectors) else vectors)
    # Row by row: as objects of Python, all numbers would take three times their memory.
    message.similarities = cast(Any, [msgspec.Raw(msgspec.json.encode(row.tolist())) for row in rows])
    return json_response(message)


def _candidates(model: ServedModel, results: list[Any], top_k: int) -> list[list[list[m.MaskCandidate]]]:
    """Return the candidates of every mask of every text."""
    return [
        [
            [m.MaskCandidate(each.token, model.reading(each.token), each.probability) for each in mask]
            for mask in mask_predictions(model.token_model(), result, top_k)
        ]
        for result in results
    ]


async def _embed(
    call: Call,
    model: ServedModel,
    encode: Callable[[list[str]], list[Sequence]],
    texts: list[str],
    truncate: bool,
    param: str,
    where: Where | None = None,
) -> QueuedJob:
    sizes = list(map(len, texts))
    check_sizes(sizes, call.service.limits, param, where=where)
    return await _run(call, model, "embed", encode, texts, sizes, truncate, where or items_of(param))


async def _embed_ids(call: Call, model: ServedModel, lists: list[list[int]], truncate: bool) -> QueuedJob:
    sizes = list(map(len, lists))
    check_sizes(sizes, call.service.limits, "input", "token ids")
    encode = _each(model.encode_ids, "input")
    return await _run(call, model, "embed", encode, list(enumerate(lists)), sizes, truncate, items_of("input"))


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


async def _predict(
    call: Call, model: ServedModel, task: Task, inputs: list[m.Example], truncate: bool, param: str
) -> tuple[QueuedJob, list[Any]]:
    """Return predictions for inputs, with the job that computed them."""
    sizes = [characters(value) for value in inputs]
    check_sizes(sizes, call.service.limits, param)
    if model.predicting.unit == "example":  # each text makes a sequence, with what it belongs to
        check_count(sum(map(texts_in, inputs)), call.service.limits, param)
    examples = await call.service.offload(sum(map(texts_in, inputs)), read_inputs, model, inputs, param)
    encode = partial(encode_inputs, model, task, param)
    job = await _run(call, model, "predict", encode, examples, sizes, truncate, items_of(param))
    return job, await call.service.offload(len(job.sequences), task.decode, job.results, job.sequences, examples)


async def _run(
    call: Call,
    model: ServedModel,
    operation: Operation,
    encode: Callable[[list[Any]], list[Sequence]],
    values: list[Any],
    sizes: list[int],
    truncate: bool = True,
    where: Where = items_of("inputs"),
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
        where: Names a value, for messages.

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
        _refuse_truncated(model, sequences, where)
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


def _usage(call: Call, model: ServedModel, sequences: list[Sequence]) -> m.Usage:
    tokens = sum(map(len, sequences))
    lost = {
        i if sequence.example < 0 else sequence.example for i, sequence in enumerate(sequences) if sequence.truncated
    }
    call.facts["tokens"] = tokens
    call.service.metrics.truncated(model.name, len(lost))
    return m.Usage(tokens, tokens, len(lost))


def _card(call: Call, model: ServedModel) -> m.ModelCard:
    task, config = model.task, model.predictor.model.encoder.config
    transformer = config if isinstance(config, TransformerConfig) else None
    return m.ModelCard(
        id=model.name,
        created=int(call.service.started),
        owned_by="bertie",
        task=task.kind if task is not None else None,
        labels=list(task.labels) if task is not None else [],
        paired=task.paired if task is not None else None,
        mask_token=model.mask_token,
        languages=list(transformer.languages) if transformer else [],
        language=transformer.language if transformer else "",
        engine=model.predictor.engine,
        layers=transformer.num_hidden_layers if transformer else None,
        heads=transformer.num_attention_heads if transformer else None,
        attention_tokens=model.attention_tokens,
        operations=model.operations,
        max_length=model.predictor.max_length,
        vector_width=model.vector_width,
    )


def _status(call: Call, problems: list[str]) -> Response:
    call.facts["logged"] = False  # probes come every few seconds
    return json_response(m.Status("unavailable" if problems else "ok", problems), 503 if problems else 200)
