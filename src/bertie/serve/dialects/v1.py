"""The dialect of bertie and of OpenAI's API: /v1 and the probes."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from starlette.responses import Response

from bertie.base.contracts import Sequence
from bertie.inspect.heads.sentences import shown_tokens, special_places, with_sources
from bertie.model.config import TransformerConfig
from bertie.predict.fill_mask import MaskPredictions
from bertie.predict.vectors import similarities
from bertie.serve import predictions, scores, vectors
from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects import v1_messages as m
from bertie.serve.exchange import Call, Dialect, Endpoint
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
    return m.EmbeddingsResponse(await embedding_list(call, embedded, request.encoding_format), **m.cost(embedded))


async def similarity(call: Call, request: m.SimilarityRequest) -> m.SimilarityResponse:
    """Compare the vectors of texts with the vectors of other texts, or with each other."""
    fields = {"texts": request.texts, "others": request.others}
    count, others = len(request.texts), len(request.others or request.texts)
    call.reserve(COSINE_BYTES * count * others)
    embedded = await embed(Ask(call, request.model, fields, request.truncate, prompt_name=request.prompt_name))
    rows = await call.offload(len(embedded.results), _similarities, embedded, count)
    return m.SimilarityResponse(rows, **m.cost(embedded))


async def tokenize(call: Call, request: m.TokenizeRequest) -> m.TokenizeResponse:
    """Return the tokens of texts, and the fingerprint of the vocabulary."""
    read = await vectors.tokenize(Ask(call, request.model, {"texts": request.texts}, prompt_name=request.prompt_name))
    call.headers[VOCABULARY] = fingerprint(read.model)
    results = await call.offload(len(read.results), _token_lists, read, request.special_tokens)
    return m.TokenizeResponse(read.model.name, call.headers[VOCABULARY], results)


async def rerank(call: Call, request: m.RerankRequest) -> m.RerankResponse:
    """Sort documents by their relevance for a query."""
    texts = [document if isinstance(document, str) else document.text for document in request.documents]
    fields, shown = {"query": request.query, "documents": texts}, request.return_documents
    ranking = await rank(Ask(call, request.model, fields, request.truncate, label=request.label), request.top_n)
    results = [m.RerankResult(i, score, m.Document(text) if shown else None) for i, score, text in ranking.results]
    return m.RerankResponse(call.id, results, rank_method(ranking.model, request.label), **m.cost(ranking))


async def search(call: Call, request: m.SearchRequest) -> m.SearchResponse:
    """Find the passages of an index that are nearest to a query."""
    found = await scores.search(
        Ask(call, request.model, {"query": request.query}, request.truncate, top_k=request.top_k)
    )
    return m.SearchResponse(found.results, **m.cost(found))


async def predict(call: Call, request: m.PredictRequest) -> m.PredictResponse:
    """Predict with a fine-tuned model."""
    ask = Ask(call, request.model, {"inputs": request.inputs}, request.truncate, strategy=request.aggregation_strategy)
    predicted = await predictions.predict(ask)
    return m.PredictResponse(predicted.model.predicting.kind, predicted.results, **m.cost(predicted))


async def fill_mask(call: Call, request: m.FillMaskRequest) -> m.FillMaskResponse:
    """Predict the tokens at masks."""
    filled = await fill_masks(Ask(call, request.model, {"inputs": request.inputs}, top_k=request.top_k))
    count = sum(map(len, chain(*filled.results)))
    return m.FillMaskResponse(await call.offload(count, _candidates, filled), **m.cost(filled))


async def attention(call: Call, request: m.AttentionRequest) -> m.AttentionResponse:
    """Return the attention probabilities of all heads in a text, or in a pair of texts."""
    attended = await attend(Ask(call, request.model, {"text": request.text, "text_pair": request.text_pair}))
    tokenizer, (sequence, probabilities) = attended.model.predictor.tokenizer, attended.results
    layers, heads = probabilities.shape[:2]
    names, special = shown_tokens(tokenizer, sequence.input_ids), special_places(tokenizer, sequence.input_ids)
    shown, arguments = with_sources(tokenizer, names, sequence.target), (probabilities, request.encoding_format)
    encoded = await call.offload(probabilities.size, attention_json, *arguments)
    return m.AttentionResponse(names, shown, special, layers, heads, encoded, **m.cost(attended))


async def models(call: Call, _: None) -> m.ModelList:
    """List the models."""
    return m.ModelList([_card(call, model) for model in call.service.models.values()])


async def model(call: Call, _: None) -> m.ModelCard:
    """Describe a model."""
    return _card(call, call.service.named(call.request.path_params["model"]))


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


async def livez(call: Call, _: None) -> m.Status:
    """Tell whether the process works. If not, restart it."""
    return _status(call, call.service.live_problems())


async def readyz(call: Call, _: None) -> m.Status:
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
    Endpoint("POST", "/v1/search", search, "Passages of an index"),
    Endpoint("POST", "/v1/predict", predict, "Predictions of a fine-tuned model"),
    Endpoint("POST", "/v1/fill-mask", fill_mask, "Tokens at masks"),
    Endpoint("POST", "/v1/attention", attention, "Attention of all heads"),
    Endpoint("GET", "/livez", livez, "Liveness", protected=False, statuses=(503,)),
    Endpoint("GET", "/readyz", readyz, "Readiness", protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus"),
)

V1 = Dialect("v1", "", ENDPOINTS, form, m.ErrorResponse)


def _token_lists(read: Answered[list[Sequence]], special: bool) -> Any:
    """Return the tokens of each text, encoded."""

    def tokens(sequence: Sequence) -> m.TokenList:
        inside = text_slice(read.model, sequence)
        shown = range(len(sequence)) if special else range(inside.start, inside.stop)
        assert sequence.offsets is not None
        offsets = [sequence.offsets[i].tolist() if inside.start <= i < inside.stop else None for i in shown]
        ids = sequence.input_ids[shown.start : shown.stop].tolist()
        return m.TokenList(ids, read.model.predictor.text_tokenizer.tokens(ids), offsets)

    return raw(map(tokens, read.results))


def _candidates(filled: Answered[list[MaskPredictions]]) -> Any:
    """Return the candidates at the masks of each text, encoded."""
    reading = cache(filled.model.reading)
    return raw(
        [[m.MaskCandidate(guess.token, reading(guess.token), guess.probability) for guess in mask] for mask in text]
        for text in filled.results
    )


async def embedding_list(call: Call, embedded: Answered[np.ndarray], encoding_format: str) -> list[m.Embedding]:
    """Return vectors as OpenAI's API has them. encoding_format: float or base64."""
    encode = (lambda rows: list(map(base64_of, rows))) if encoding_format == "base64" else json_numbers
    encoded = await call.offload(len(embedded.results), encode, embedded.results)
    return [m.Embedding(number, vector) for number, vector in enumerate(encoded)]


def _similarities(embedded: Answered[np.ndarray], count: int) -> Any:
    """Compare the first `count` vectors with the others, or with each other. Returns encoded rows."""
    texts, others = embedded.results[:count], embedded.results[count:]
    similarity = embedded.model.predictor.text_embedding.similarity
    return raw(map(json_numbers, similarities(similarity, texts, others if len(others) else texts)))


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
        sentence_vectors=model.predictor.text_embedding.stated,
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


def _status(call: Call, problems: list[str]) -> m.Status:
    call.facts["logged"] = False  # probes come every few seconds
    call.status = 503 if problems else 200
    return m.Status("unavailable" if problems else "ok", problems)
