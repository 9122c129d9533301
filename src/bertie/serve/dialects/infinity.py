"""The dialect of infinity (michaelfeil/infinity): /infinity. Facts are those of its OpenAPI description."""

from __future__ import annotations

import time
from typing import Any

from bertie.serve import work
from bertie.serve.dialects import infinity_messages as m
from bertie.serve.dialects.coded_errors import coded_form
from bertie.serve.dialects.dialect import Dialect, Endpoint, require_ready
from bertie.serve.dialects.v1 import encoded_embeddings, metrics
from bertie.serve.dialects.v1_messages import Usage
from bertie.serve.exchange import Call
from bertie.serve.limits import Refused, field_of
from bertie.serve.operations import Operation, ServedModel
from bertie.serve.widths import require_width, shorten_vectors


async def embeddings(call: Call, request: m.InfinityEmbeddingsRequest) -> m.InfinityEmbeddings:
    """Return the vectors of texts, as the files of the model say: normalized if these do."""
    model = _model(call, request, "embed")
    dimensions = request.dimensions or None
    require_width(model, dimensions)
    texts = [request.input] if isinstance(request.input, str) else request.input
    found = await work.embed(call, model, texts, True, "input", where=field_of("input", request.input))
    vectors = shorten_vectors(model, found.results, dimensions)
    data = await call.service.offload(len(texts), encoded_embeddings, vectors, request.encoding_format)
    return m.InfinityEmbeddings(data=data, **_answer(call, model, found))


async def rerank(call: Call, request: m.InfinityRerankRequest) -> m.InfinityRanks:
    """Sort documents by their relevance for a query."""
    model = _model(call, request, "embed")
    scale = "raw" if request.raw_scores else "sigmoid"
    found = await work.rank(call, model, request.query, request.documents, True, scale=scale)
    best = sorted(enumerate(found.results), key=lambda each: -each[1])[: request.top_n]
    shown = request.documents if request.return_documents else [None] * len(request.documents)
    results = [m.InfinityRank(score, i, shown[i]) for i, score in best]
    return m.InfinityRanks(results=results, **_answer(call, model, found))


async def classify(call: Call, request: m.InfinityClassifyRequest) -> m.InfinityClasses:
    """Return the classes of texts."""
    model = _model(call, request, "predict")
    scale = "raw" if request.raw_scores else "sigmoid"
    found = await work.outputs(call, model, [*request.input], True, "input", scale)
    data = [
        [m.InfinityClass(score, label) for label, score in sorted(each.probabilities.items(), key=lambda one: -one[1])]
        for each in found.results
    ]
    return m.InfinityClasses(data=data, **_answer(call, model, found))


async def models(call: Call, _: None) -> m.InfinityModels:
    """List the models."""
    found = []
    for model in call.service.models.values():
        share = model.share
        size = call.service.queue.batch_tokens
        stats = m.InfinityStats(share.tokens / share.capacity, share.sequences, share.sequences, size)
        capabilities = ["embed", "rerank"]
        if model.task is not None and model.task.facts.shape == "text":
            capabilities.append("classify")
        created, engine = int(call.service.started), model.predictor.engine
        found.append(m.InfinityModel(model.name, stats, "infinity", created, engine, capabilities))
    return m.InfinityModels(found)


async def health(call: Call, _: None) -> m.InfinityHealth:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return m.InfinityHealth(time.time())


def form(refused: Refused) -> m.InfinityError:
    """Return the message of an error."""
    detail = m.InfinityDetail(["body", *([refused.param] if refused.param else [])], refused.message, refused.type)
    return m.InfinityError(coded_form(refused).error, [detail])


ENDPOINTS = (
    Endpoint("POST", "/embeddings", embeddings, "Vectors of texts", m.InfinityEmbeddings, m.InfinityEmbeddingsRequest),
    Endpoint("POST", "/rerank", rerank, "Documents by relevance", m.InfinityRanks, m.InfinityRerankRequest),
    Endpoint("POST", "/classify", classify, "Classes of texts", m.InfinityClasses, m.InfinityClassifyRequest),
    Endpoint("GET", "/models", models, "List the models", m.InfinityModels),
    Endpoint("GET", "/health", health, "Health", m.InfinityHealth, protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus", None),
)

INFINITY = Dialect("infinity", "/infinity", ENDPOINTS, form, m.InfinityError)


def _model(call: Call, request: m.InfinityRequest, operation: Operation) -> ServedModel:
    return call.service.model("" if request.model == m.UNNAMED else request.model, operation)


def _answer(call: Call, model: ServedModel, found: work.Answered[Any]) -> dict[str, Any]:
    """Return what every answer of a model has."""
    usage = Usage(found.tokens, found.tokens, found.truncated)
    return {"model": model.name, "usage": usage, "id": f"infinity-{call.id}", "created": int(time.time())}
