"""The dialect of bertie and of OpenAI's API: /v1 and the probes."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Annotated, Any

import numpy as np
from starlette.responses import Response

from bertie.base.contracts import Sequence
from bertie.inspect.heads.sentences import shown_tokens, special_places, with_sources
from bertie.model.config import TransformerConfig
from bertie.predict.fill_mask import MaskPrediction
from bertie.predict.vectors import similarities
from bertie.serve import predictions, vectors
from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects import v1_messages as m
from bertie.serve.exchange import Call, Dialect, Endpoint, json_response
from bertie.serve.limits import Refused
from bertie.serve.numbers import base64_of, json_numbers, raw
from bertie.serve.operations import ServedModel
from bertie.serve.predictions import attend, attention_json, fill_masks
from bertie.serve.scores import rank, rank_method
from bertie.serve.vectors import VOCABULARY, embed, fingerprint, text_slice

COSINE_BYTES = 24  # of a cosine: in JSON, and as a number
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


async def embeddings(call: Call, request: m.EmbeddingsRequest) -> m.EmbeddingsResponse:
    """Return the vectors of texts or of token ids."""
    ask = Ask(
        *(call, request.model, {"input": request.input}, request.truncate),
        prompt_name=request.prompt_name,
        input_type=request.input_type,
        dimensions=request.dimensions,
    )
    embedded = await embed(ask)
    return m.EmbeddingsResponse(await embedding_list(call, embedded, request.encoding_format), **_answer(embedded))


async def similarity(call: Call, request: m.SimilarityRequest) -> Annotated[Response, m.SimilarityResponse]:
    """Compare the vectors of texts with those of other texts, or with each other."""
    fields = {"texts": request.texts, "others": request.others}
    count, others = len(request.texts), len(request.others or request.texts)
    call.reserve(COSINE_BYTES * count * others)
    embedded = await embed(Ask(call, request.model, fields, request.truncate, prompt_name=request.prompt_name))
    message = m.SimilarityResponse([], **_answer(embedded))
    return await call.service.offload(len(embedded.results), _similarities, embedded, message, count)


async def tokenize(call: Call, request: m.TokenizeRequest) -> Annotated[Response, m.TokenizeResponse]:
    """Return the tokens of texts, and the fingerprint of the vocabulary."""
    ask = Ask(call, request.model, {"texts": request.texts}, prompt_name=request.prompt_name)
    read = await vectors.tokenize(ask)
    response = await call.service.offload(len(read.results), _with_tokens, read, request.special_tokens)
    response.headers[VOCABULARY] = fingerprint(read.model)
    return response


async def rerank(call: Call, request: m.RerankRequest) -> m.RerankResponse:
    """Sort documents by their relevance for a query."""
    texts = [document if isinstance(document, str) else document.text for document in request.documents]
    fields = {"query": request.query, "documents": texts}
    ranking = await rank(Ask(call, request.model, fields, request.truncate, label=request.label))
    shown, method = request.return_documents, rank_method(ranking.model, request.label)
    best = ranking.results[: request.top_n]
    results = [m.RerankResult(i, score, m.Document(texts[i]) if shown else None) for i, score in best]
    return m.RerankResponse(call.id, results, method, **_answer(ranking))


async def predict(call: Call, request: m.PredictRequest) -> m.PredictResponse:
    """Predict with a fine-tuned model."""
    ask = Ask(call, request.model, {"inputs": request.inputs}, request.truncate, strategy=request.aggregation_strategy)
    predicted = await predictions.predict(ask)
    return m.PredictResponse(predicted.model.predicting.kind, predicted.results, **_answer(predicted))


async def fill_mask(call: Call, request: m.FillMaskRequest) -> Annotated[Response, m.FillMaskResponse]:
    """Predict the tokens at masks."""
    filled = await fill_masks(Ask(call, request.model, {"inputs": request.inputs}, top_k=request.top_k))
    count = sum(map(len, chain(*filled.results)))
    return await call.service.offload(count, _with_candidates, filled, m.FillMaskResponse([], **_answer(filled)))


async def attention(call: Call, request: m.AttentionRequest) -> Annotated[Response, m.AttentionResponse]:
    """Return the attention probabilities of all heads in a text, or in a pair of texts."""
    attended = await attend(Ask(call, request.model, {"text": request.text, "text_pair": request.text_pair}))
    tokenizer, (sequence, probabilities) = attended.model.predictor.tokenizer, attended.results
    layers, heads = probabilities.shape[:2]
    names, special = shown_tokens(tokenizer, sequence.input_ids), special_places(tokenizer, sequence.input_ids)
    shown = with_sources(tokenizer, names, sequence.target)
    message = m.AttentionResponse(names, shown, special, layers, heads, "", **_answer(attended))
    arguments = (message, probabilities, request.encoding_format)
    return await call.service.offload(probabilities.size, _with_attention, *arguments)


async def models(call: Call, _: None) -> m.ModelList:
    """List the models."""
    return m.ModelList([_card(call, model) for model in call.service.models.values()])


async def model(call: Call, _: None) -> m.ModelCard:
    """Describe a model."""
    name = call.request.path_params["model"]
    if name not in call.service.models:
        raise Refused(404, "model", f"no model has this name: the models are {', '.join(call.service.models)}", "model")
    return _card(call, call.service.models[name])


def require_ready(call: Call) -> None:
    """Check, for a probe, whether this process takes requests. Raises Refused with status 503."""
    call.facts["logged"] = False  # probes come every few seconds
    if problems := call.service.ready_problems():
        raise Refused(503, "unhealthy", "; ".join(problems))


async def health(call: Call, _: None) -> Response:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return Response(b"", media_type="text/plain")


HEALTH = Endpoint("GET", "/health", health, "Health", protected=False, statuses=(503,))
"""The probe of services whose answer is empty."""


async def livez(call: Call, _: None) -> Annotated[Response, m.Status]:
    """Tell whether the process works. If not, restart it."""
    return _status(call, call.service.live_problems())


async def readyz(call: Call, _: None) -> Annotated[Response, m.Status]:
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
    Endpoint("GET", "/v1/models", models, "List the models"),
    Endpoint("GET", "/v1/models/{model:path}", model, "Describe a model", statuses=(404,)),
    Endpoint("POST", "/v1/embeddings", embeddings, "Vectors of texts"),
    Endpoint("POST", "/v1/similarity", similarity, "Cosines of texts"),
    Endpoint("POST", "/v1/tokenize", tokenize, "Tokens of texts"),
    Endpoint("POST", "/v1/rerank", rerank, "Documents by relevance"),
    Endpoint("POST", "/v1/predict", predict, "Predictions of a fine-tuned model"),
    Endpoint("POST", "/v1/fill-mask", fill_mask, "Tokens at masks"),
    Endpoint("POST", "/v1/attention", attention, "Attention of all heads"),
    Endpoint("GET", "/livez", livez, "Liveness", protected=False, statuses=(503,)),
    Endpoint("GET", "/readyz", readyz, "Readiness", protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus"),
)

V1 = Dialect("v1", "", ENDPOINTS, form, m.ErrorResponse)


def _with_tokens(read: Answered[list[Sequence]], special: bool) -> Response:
    model, tokenizer = read.model, read.model.predictor.text_tokenizer

    def tokens(sequence: Sequence) -> m.TokenList:
        inside = text_slice(model, sequence)
        shown = range(len(sequence)) if special else range(inside.start, inside.stop)
        assert sequence.offsets is not None
        offsets = [sequence.offsets[i].tolist() if inside.start <= i < inside.stop else None for i in shown]
        ids = sequence.input_ids[shown.start : shown.stop].tolist()
        return m.TokenList(ids, tokenizer.tokens(ids), offsets)

    return json_response(m.TokenizeResponse(model.name, fingerprint(model), raw(map(tokens, read.results))))


def _with_candidates(filled: Answered[list[list[list[MaskPrediction]]]], message: m.FillMaskResponse) -> Response:
    reading = cache(filled.model.reading)
    message.results = [
        [[m.MaskCandidate(each.token, reading(each.token), each.probability) for each in mask] for mask in text]
        for text in filled.results
    ]
    return json_response(message)


async def embedding_list(call: Call, embedded: Answered[np.ndarray], encoding_format: str) -> list[m.Embedding]:
    """Return vectors as OpenAI's API has them. encoding_format: float or base64."""
    encode = (lambda rows: list(map(base64_of, rows))) if encoding_format == "base64" else json_numbers
    encoded = await call.service.offload(len(embedded.results), encode, embedded.results)
    return [m.Embedding(number, vector) for number, vector in enumerate(encoded)]


def _similarities(embedded: Answered[np.ndarray], message: m.SimilarityResponse, count: int) -> Response:
    """Compare the first `count` vectors with the others, or with each other."""
    texts, others = embedded.results[:count], embedded.results[count:]
    rows = similarities(embedded.model.predictor.text_embedding.similarity, texts, others if len(others) else texts)
    message.similarities = raw(map(json_numbers, rows))
    return json_response(message)


def _with_attention(message: m.AttentionResponse, attention: np.ndarray, encoding_format: str) -> Response:
    message.attention = attention_json(attention, encoding_format)
    return json_response(message)


def _answer(answered: Answered[Any]) -> dict[str, Any]:
    """Return what every answer of a model ends with."""
    return {"model": answered.model.name, "usage": m.usage(answered)}


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
