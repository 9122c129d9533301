"""The JSON messages of infinity."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bertie.serve.dialects.coded_errors import CodedError
from bertie.serve.dialects.v1_messages import Embedding, Texts, Usage
from bertie.serve.limits import ErrorType

UNNAMED = "default/not-specified"
"""What infinity calls the model of a request that names none."""


class InfinityRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every request may say. Texts with more tokens than the model reads are truncated."""

    model: str = UNNAMED
    """Name of the model. It may be omitted if the server has one model."""


class InfinityEmbeddingsRequest(InfinityRequest, kw_only=True):
    """Texts to embed, as in OpenAI's API."""

    input: str | Texts
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32 numbers."""
    dimensions: Annotated[int, Meta(ge=0)] = 0
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
    top_n: Annotated[int, Meta(ge=1)] | None = None
    """Most results. Without it: all documents."""


class InfinityClassifyRequest(InfinityRequest, kw_only=True):
    """Texts to classify."""

    input: Texts
    raw_scores: bool = False
    """Return the outputs of the head, before softmax or sigmoid."""


class InfinityAnswer(Struct, kw_only=True):
    """What every answer of a model has."""

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


class InfinityClass(Struct):
    """A class with its score."""

    score: float
    label: str


class InfinityClasses(InfinityAnswer, tag_field="object", tag="classify"):
    """For each text its classes, highest score first."""

    data: list[list[InfinityClass]]


class InfinityStats(Struct):
    """How much work waits for a model."""

    queue_fraction: float
    """Tokens that wait, as a share of the most that may."""
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
    """What computes the model."""
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
