"""The dialect of infinity (michaelfeil/infinity): /infinity. Source: its OpenAPI description."""

from __future__ import annotations

import time
from typing import Any, Literal

from msgspec import Struct

from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects.v1 import embedding_list, metrics, require_ready
from bertie.serve.dialects.v1_messages import (
    AtLeast0,
    AtLeast1,
    ClassScore,
    CodedError,
    Embedding,
    Texts,
    Usage,
    coded_form,
    cost,
)
from bertie.serve.exchange import Call, Dialect, Endpoint
from bertie.serve.limits import ErrorType, Refused
from bertie.serve.scores import classify as classified
from bertie.serve.scores import rank
from bertie.serve.vectors import embed

UNNAMED = "default/not-specified"
"""The name in infinity for the model of a request that names none."""


class InfinityRequest(Struct, forbid_unknown_fields=True):
    """The fields of every request. Texts with more tokens than the model reads are truncated."""

    model: str = UNNAMED
    """Name of the model. It may be omitted if the server has one model."""


class InfinityEmbeddingsRequest(InfinityRequest, kw_only=True):
    """Texts to embed, as in OpenAI's API."""

    input: str | Texts
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32 numbers."""
    dimensions: AtLeast0 = 0
    """Width of the vectors: the model's own, also as 0, or a smaller one that it was trained for. Shorter vectors have length
    1."""
    modality: Literal["text"] = "text"
    user: str | None = None
    """Ignored: it has no effect on the answer."""


class InfinityRerankRequest(InfinityRequest, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: Texts
    return_documents: bool = False
    """Repeat each document in its result."""
    raw_scores: bool = False
    """Of a reranker: return the output of the head instead of its sigmoid."""
    top_n: AtLeast1 | None = None
    """Maximum number of results. Without it: all documents."""


class InfinityClassifyRequest(InfinityRequest, kw_only=True):
    """Texts to classify."""

    input: Texts
    raw_scores: bool = False
    """Return the outputs of the head, before softmax or sigmoid."""


class InfinityAnswer(Struct, kw_only=True):
    """The fields of every answer of a model."""

    model: str
    usage: Usage
    id: str
    created: int
    """When the request was answered, in seconds since 1970."""


class InfinityEmbeddings(InfinityAnswer, tag_field="object", tag="list"):
    """Vectors, in the order of the texts."""

    data: list[Embedding]


class InfinityRank(Struct):
    """A document with its relevance."""

    relevance_score: float
    index: int
    """Number of the document in the request, from 0."""
    document: str | None


class InfinityRanks(InfinityAnswer, tag_field="object", tag="rerank"):
    """Documents, most relevant first."""

    results: list[InfinityRank]


class InfinityClasses(InfinityAnswer, tag_field="object", tag="classify"):
    """For each text its classes, highest score first."""

    data: list[list[ClassScore]]


class InfinityStats(Struct):
    """How much work waits for a model."""

    queue_fraction: float
    """Tokens that wait, as a share of the maximum that may wait."""
    queue_absolute: int
    """Texts that wait or are being computed."""
    results_pending: int
    """The same number."""
    batch_size: int
    """Tokens in a batch."""


class InfinityModel(Struct, tag_field="object", tag="model"):
    """A model of the server."""

    id: str
    stats: InfinityStats
    owned_by: Literal["infinity"]
    """Clients refuse any other value."""
    created: int
    backend: str
    """The engine of the model."""
    capabilities: list[str]


class InfinityModels(Struct, tag_field="object", tag="list"):
    """The models of the server."""

    data: list[InfinityModel]


class InfinityDetail(Struct):
    """Why a request was refused, as FastAPI says it."""

    loc: list[str]
    """Where: body, and the field."""
    msg: str
    type: ErrorType


class InfinityError(Struct):
    """The response to a request that was refused: for clients of OpenAI, and for infinity_client."""

    error: CodedError
    detail: list[InfinityDetail]


class InfinityHealth(Struct):
    """The time of the server."""

    unix: float


async def embeddings(call: Call, request: InfinityEmbeddingsRequest) -> InfinityEmbeddings:
    """Return the vectors of texts, normalized only if the files of the model normalize them."""
    embedded = await embed(_ask(call, request, {"input": request.input}, dimensions=request.dimensions or None))
    data = await embedding_list(call, embedded, request.encoding_format)
    return InfinityEmbeddings(data=data, **_answer(call, embedded))


async def rerank(call: Call, request: InfinityRerankRequest) -> InfinityRanks:
    """Sort documents by their relevance for a query."""
    fields = {"query": request.query, "documents": request.documents}
    ask = _ask(call, request, fields, scale="raw" if request.raw_scores else "sigmoid")
    ranking, shown = await rank(ask, request.top_n), request.return_documents
    results = [InfinityRank(score, i, text if shown else None) for i, score, text in ranking.results]
    return InfinityRanks(results=results, **_answer(call, ranking))


async def classify(call: Call, request: InfinityClassifyRequest) -> InfinityClasses:
    """Return the classes of texts."""
    scale = "raw" if request.raw_scores else "sigmoid"
    scores = await classified(_ask(call, request, {"input": request.input}, scale=scale))
    data = [[ClassScore(score, label) for label, score in text.ranked] for text in scores.results]
    return InfinityClasses(data=data, **_answer(call, scores))


async def models(call: Call, _: None) -> InfinityModels:
    """List the models."""
    data = []
    for model in call.service.models.values():
        share, size = model.share, call.service.queue.batch_tokens
        stats = InfinityStats(share.tokens / share.capacity, share.sequences, share.sequences, size)
        classifies = model.task is not None and model.task.facts.shape == "text"
        capabilities = ["embed", "rerank", *["classify"] * classifies]
        created, engine = int(call.service.started), model.predictor.engine
        data.append(InfinityModel(model.name, stats, "infinity", created, engine, capabilities))
    return InfinityModels(data)


async def health(call: Call, _: None) -> InfinityHealth:
    """Tell whether to send requests to this process."""
    require_ready(call)
    return InfinityHealth(time.time())


def form(refused: Refused) -> InfinityError:
    """Return the message of an error."""
    detail = InfinityDetail(["body", *([refused.param] if refused.param else [])], refused.message, refused.type)
    return InfinityError(coded_form(refused).error, [detail])


ENDPOINTS = (
    Endpoint("POST", "/embeddings", embeddings, "Vectors of texts"),
    Endpoint("POST", "/rerank", rerank, "Documents by relevance"),
    Endpoint("POST", "/classify", classify, "Classes of texts"),
    Endpoint("GET", "/models", models, "List the models"),
    Endpoint("GET", "/health", health, "Health", protected=False, statuses=(503,)),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus"),
)

INFINITY = Dialect("infinity", "/infinity", ENDPOINTS, form, InfinityError)


def _ask(call: Call, request: InfinityRequest, fields: dict[str, Any], **settings: Any) -> Ask:
    return Ask(call, "" if request.model == UNNAMED else request.model, fields, **settings)


def _answer(call: Call, answered: Answered[Any]) -> dict[str, Any]:
    """Return the fields of every answer of a model."""
    return {**cost(answered), "id": f"infinity-{call.id}", "created": int(time.time())}
