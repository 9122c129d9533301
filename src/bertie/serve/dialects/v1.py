"""The dialect of bertie and of OpenAI's API: /v1 and the probes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import chain
from typing import Any, cast

import msgspec
import numpy as np
from starlette.responses import Response

from bertie.contracts import Sequence
from bertie.inspect.sentences import shown_tokens, special_places, with_sources
from bertie.model.config import TransformerConfig
from bertie.predict.fill_mask import MaskPrediction
from bertie.predict.vectors import similarities
from bertie.serve import tokens, work
from bertie.serve.attention import attention_json
from bertie.serve.dialects import v1_messages as m
from bertie.serve.dialects.dialect import Dialect, Endpoint
from bertie.serve.exchange import Call, json_response
from bertie.serve.limits import Refused
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel
from bertie.serve.prompts import prompt_name
from bertie.serve.widths import base64_of, require_width, shorten_vectors

COSINE_BYTES = 24  # of a cosine: in JSON, and as a number
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def embeddings(call: Call, request: m.EmbeddingsRequest) -> m.EmbeddingsResponse:
    """Return the vectors of texts or of token ids."""
    model = call.service.model(request.model, "embed")
    require_width(model, request.dimensions)
    if request.input_type is not None and tokens.has_ids(request.input):
        raise Refused(422, "validation", "input_type: token ids have no prompt: give texts", "input_type")
    prompt = prompt_name(model, request.prompt_name, request.input_type)
    found = await tokens.vectors(call, model, request.input, request.truncate, "input", prompt)
    vectors = shorten_vectors(model, found.results, request.dimensions)
    data = await call.service.offload(len(vectors), encoded_embeddings, vectors, request.encoding_format)
    return m.EmbeddingsResponse(data, **_answer(model, found))


async def similarity(call: Call, request: m.SimilarityRequest) -> Response:
    """Compare the vectors of texts with those of other texts, or with each other."""
    model = call.service.model(request.model, "embed")
    texts, count = [*request.texts, *(request.others or ())], len(request.texts)

    def where(number: int) -> str:
        return f"texts[{number}]" if number < count else f"others[{number - count}]"

    call.reserve(COSINE_BYTES * count * (len(texts) - count or count))
    found = await work.embed(call, model, texts, request.truncate, "texts", request.prompt_name, where)
    message = m.SimilarityResponse([], **_answer(model, found))
    compare = partial(similarities, model.predictor.text_embedding.similarity)
    return await call.service.offload(len(texts), _similarities, compare, message, np.stack(found.results), count)


async def tokenize(call: Call, request: m.TokenizeRequest) -> Response:
    """Return the tokens of texts, and the fingerprint of the vocabulary."""
    model = call.service.model(request.model, "embed")
    prompt = work.prompt_of(model, request.prompt_name)
    found = await tokens.tokenize(call, model, request.texts, "texts", prompt)
    message = m.TokenizeResponse(model.name, tokens.fingerprint(model), [])
    response = await call.service.offload(len(found), _with_tokens, model, message, found, request.special_tokens)
    response.headers[tokens.VOCABULARY] = message.vocabulary
    return response


async def rerank(call: Call, request: m.RerankRequest) -> m.RerankResponse:
    """Sort documents by their relevance for a query."""
    model = call.service.model(request.model, "embed")
    texts = [document if isinstance(document, str) else document.text for document in request.documents]
    found = await work.rank(call, model, request.query, texts, request.truncate, request.label)
    scores, shown, method = found.results, request.return_documents, work.rank_method(model, request.label)
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[: request.top_n]
    results = [m.RerankResult(i, scores[i], m.Document(texts[i]) if shown else None) for i in best]
    return m.RerankResponse(call.id, results, method, **_answer(model, found))


async def predict(call: Call, request: m.PredictRequest) -> m.PredictResponse:
    """Predict with a fine-tuned model."""
    model = call.service.model(request.model, "predict")
    found = await work.predict(call, model, request.inputs, request.truncate, "inputs", request.aggregation_strategy)
    return m.PredictResponse(model.predicting.kind, found.results, **_answer(model, found))


async def fill_mask(call: Call, request: m.FillMaskRequest) -> Response:
    """Predict the tokens at masks."""
    model = call.service.model(request.model, "fill-mask")
    found = await work.fill_masks(call, model, request.inputs, request.top_k, "inputs")
    message, count = m.FillMaskResponse([], **_answer(model, found)), sum(map(len, chain(*found.results)))
    return await call.service.offload(count, _with_candidates, model, message, found.results)


async def attention(call: Call, request: m.AttentionRequest) -> Response:
    """Return the attention probabilities of all heads in a text, or in a pair of texts."""
    model = call.service.model(request.model, "attention")
    texts = [request.text] if request.text_pair is None else [request.text, request.text_pair]
    found = await work.attend(call, model, texts, ("text", "text_pair"))
    sequence, probabilities = found.results
    read, (layers, heads) = (model.predictor.tokenizer, sequence.input_ids), probabilities.shape[:2]
    names, special = shown_tokens(*read), special_places(*read)
    shown = with_sources(model.predictor.tokenizer, names, sequence.target)
    message = m.AttentionResponse(names, shown, special, layers, heads, "", **_answer(model, found))
    return await call.service.offload(
        probabilities.size, _with_attention, message, probabilities, request.encoding_format
    )


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


def form(refused: Refused) -> m.ErrorResponse:
    """Return the message of an error."""
    return m.ErrorResponse(m.Error(refused.message, refused.type, refused.param, refused.reason))


ENDPOINTS = (
    Endpoint("GET", "/v1/models", models, "List the models", m.ModelList),
    Endpoint("GET", "/v1/models/{model:path}", model, "Describe a model", m.ModelCard, statuses=(404,)),
    Endpoint("POST", "/v1/embeddings", embeddings, "Vectors of texts", m.EmbeddingsResponse, m.EmbeddingsRequest),
    Endpoint("POST", "/v1/similarity", similarity, "Cosines of texts", m.SimilarityResponse, m.SimilarityRequest),
    Endpoint("POST", "/v1/tokenize", tokenize, "Tokens of texts", m.TokenizeResponse, m.TokenizeRequest),
    Endpoint("POST", "/v1/rerank", rerank, "Documents by relevance", m.RerankResponse, m.RerankRequest),
    Endpoint("POST", "/v1/predict", predict, "Predictions of a fine-tuned model", m.PredictResponse, m.PredictRequest),
    Endpoint("POST", "/v1/fill-mask", fill_mask, "Tokens at masks", m.FillMaskResponse, m.FillMaskRequest),
    Endpoint("POST", "/v1/attention", attention, "Attention of all heads", m.AttentionResponse, m.AttentionRequest),
    Endpoint("GET", "/livez", livez, "Liveness", m.Status, protected=False, statuses=(503,)),
    Endpoint("GET", "/readyz", readyz, "Readiness", m.Status, protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus", None),
)

V1 = Dialect("v1", "", ENDPOINTS, form, m.ErrorResponse)


def _with_tokens(model: ServedModel, message: m.TokenizeResponse, found: list[Sequence], special: bool) -> Response:
    tokenizer = model.predictor.text_tokenizer
    for sequence in found:
        inside = tokens.text_slice(model, sequence)
        shown = range(len(sequence)) if special else range(inside.start, inside.stop)
        assert sequence.offsets is not None
        offsets = [sequence.offsets[i].tolist() if inside.start <= i < inside.stop else None for i in shown]
        ids = sequence.input_ids[shown.start : shown.stop].tolist()
        row = m.TokenList(ids, tokenizer.tokens(ids), offsets)
        # Text by text: as objects of Python, all tokens would take several times their memory.
        message.results.append(cast(Any, msgspec.Raw(msgspec.json.encode(row))))
    return json_response(message)


def _with_candidates(
    model: ServedModel, message: m.FillMaskResponse, found: list[list[list[MaskPrediction]]]
) -> Response:
    reading = cache(model.reading)
    message.results = [
        [[m.MaskCandidate(each.token, reading(each.token), each.probability) for each in mask] for mask in text]
        for text in found
    ]
    return json_response(message)


def encoded_embeddings(vectors: list[np.ndarray], encoding_format: str) -> list[m.Embedding]:
    """Return vectors as OpenAI's API has them. encoding_format: float or base64."""
    base64 = encoding_format == "base64"
    encoded = [base64_of(vector) for vector in vectors] if base64 else json_numbers(np.stack(vectors))
    return [m.Embedding(number, vector) for number, vector in enumerate(encoded)]


def _similarities(
    compare: Callable[[np.ndarray, np.ndarray], np.ndarray],
    message: m.SimilarityResponse,
    vectors: np.ndarray,
    count: int,
) -> Response:
    """Compare the first `count` vectors with the others, or with each other."""
    rows = compare(vectors[:count], vectors[count:] if count < len(vectors) else vectors)
    # Row by row: as objects of Python, all numbers would take three times their memory.
    message.similarities = cast(Any, [msgspec.Raw(msgspec.json.encode(json_numbers(row))) for row in rows])
    return json_response(message)


def _with_attention(message: m.AttentionResponse, attention: np.ndarray, encoding_format: str) -> Response:
    message.attention = attention_json(attention, encoding_format)
    return json_response(message)


def _answer(model: ServedModel, found: work.Answered[Any]) -> dict[str, Any]:
    """Return what every answer of a model ends with."""
    return {"model": model.name, "usage": m.Usage(found.tokens, found.tokens, found.truncated)}


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
        sentence_vectors=model.sentence_vectors,
        mask_token=model.mask_token,
        languages=list(config.languages),
        language=config.language,
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
