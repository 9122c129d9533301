"""The dialect of Cohere's API: /v1/embed and /v1/rerank, /v2/embed and /v2/rerank.

Source: the client cohere 7.3 with its descriptions of fields. Without effect, because no result depends on them: `priority`
(requests are computed in turns), and `max_tokens` and `max_tokens_per_doc` that are not below what the model reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects.v1_messages import AtLeast1, Named, Texts
from bertie.serve.exchange import Call, Dialect, Endpoint
from bertie.serve.limits import unfit
from bertie.serve.numbers import base64_of, json_numbers
from bertie.serve.scores import rank
from bertie.serve.vectors import embed

EmbeddingType = Literal["float", "base64", "binary", "ubinary"]


class CohereEmbedV1(Named):
    """Texts to embed."""

    texts: list[str] | None = None
    images: list[str] | None = None
    """Refused: the models of this server read texts."""
    input_type: Literal["search_query", "search_document", "classification", "clustering"] | None = None
    """The model's prompt for it is put before each text. image is not offered."""
    embedding_types: list[EmbeddingType] | None = None
    """float, base64 (bytes of little-endian float32 numbers), ubinary (the signs of the numbers, eight in a byte) or binary
    (the same minus 128). int8 and uint8 are not offered: Cohere does not publish their ranges."""
    truncate: Literal["NONE", "END"] | None = None
    """NONE refuses texts with more tokens than the model reads. END, the default, truncates their end. START is not offered."""


class CohereContent(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an input."""

    type: Literal["text"]
    """image_url is not offered: the models of this server read texts."""
    text: str


class CohereInput(Struct, forbid_unknown_fields=True):
    """An input of one part, a text."""

    content: Annotated[list[CohereContent], Meta(min_length=1, max_length=1)]


class CohereEmbedV2(CohereEmbedV1):
    """Texts to embed, as `texts` or as `inputs`."""

    inputs: list[CohereInput] | None = None
    max_tokens: AtLeast1 | None = None
    """Tokens of a text that are read. Refused if the model reads more."""
    output_dimension: int | None = None
    """Width of the vectors: the model's own, or a smaller one that it was trained for. Shorter vectors have length 1."""
    priority: int | None = None
    """Without effect."""


class CohereRerankV1(Named, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: Annotated[list[str | dict[str, str]], Meta(min_length=1)]
    top_n: AtLeast1 | None = None
    """Maximum number of results. Without it: all documents."""
    rank_fields: Texts | None = None
    """Of documents that are objects: the fields to read, one line each in this order. Without it: text."""
    return_documents: bool = False
    """Repeat each document in its result."""
    max_chunks_per_doc: Literal[1] | None = None
    """Only 1: of a long document, the beginning is read."""


class CohereRerankV2(Named, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: Texts
    top_n: AtLeast1 | None = None
    """Maximum number of results. Without it: all documents."""
    return_documents: bool = False
    """Repeat each document in its result. Newer clients of Cohere do not send it, others do."""
    max_tokens_per_doc: AtLeast1 | None = None
    """Tokens of a document that are read. Refused if the model reads more."""
    priority: int | None = None
    """Without effect."""


class CohereVersion(Struct):
    """Version of the API."""

    version: str


class CohereTokens(Struct):
    """Tokens that the model read, special tokens included."""

    input_tokens: int


class CohereMeta(Struct):
    """The cost of a request. `billed_units` repeats the tokens for clients that read only these."""

    api_version: CohereVersion
    billed_units: CohereTokens
    tokens: CohereTokens
    warnings: list[str]
    """How many texts were truncated."""


class CohereVectors(Struct, rename={"floats": "float"}):
    """The vectors in each of the types that were asked for, in the order of the texts."""

    floats: list[list[float]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereFloats(Struct, tag_field="response_type", tag="embeddings_floats"):
    """Vectors, in the order of the texts."""

    id: str
    embeddings: list[list[float]]
    texts: list[str]
    meta: CohereMeta


class CohereByType(Struct, tag_field="response_type", tag="embeddings_by_type"):
    """Vectors in several types."""

    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta


class CohereResult(Struct, omit_defaults=True):
    """A document with its relevance: a probability or number of a model for pairs, or else the cosine of the vectors."""

    index: int
    """Number of the document in the request, from 0."""
    relevance_score: float
    document: dict[str, str] | None = None


class CohereRanking(Struct):
    """Documents, most relevant first."""

    id: str
    results: list[CohereResult]
    meta: CohereMeta


class CohereError(Struct):
    """Why a request was refused."""

    message: str


async def embed_v1(call: Call, request: CohereEmbedV1) -> CohereFloats | CohereByType:
    """Return the vectors of texts: numbers, or an object with each of `embedding_types`."""
    ask = _ask(call, request, {"texts": request.texts or []})
    if request.embedding_types:
        return await _by_type(ask, request.embedding_types, "1")
    embedded = await embed(ask)
    rows = await call.offload(len(ask.values), json_numbers, embedded.results)
    return CohereFloats(call.id, rows, ask.values, _meta(embedded, "1"))


async def embed_v2(call: Call, request: CohereEmbedV2) -> CohereByType:
    """Return the vectors of texts, in each of `embedding_types`."""
    if request.texts and request.inputs:
        raise unfit("inputs", "texts are given, too: give either texts or inputs")
    inputs = [part.content[0].text for part in request.inputs or ()]
    ask = _ask(call, request, {"inputs": inputs or None, "texts": None if inputs else request.texts or []})
    _require_whole(ask, request.max_tokens, "max_tokens")
    return await _by_type(ask, request.embedding_types or ["float"], "2")


async def rerank_v1(call: Call, request: CohereRerankV1) -> CohereRanking:
    """Sort documents by their relevance for a query."""
    if len(set(request.rank_fields or ())) < len(request.rank_fields or ()):
        raise unfit("rank_fields", "a field is named twice: name it once")
    texts = [_text(document, request.rank_fields, i) for i, document in enumerate(request.documents)]
    return await _rank(Ask(call, request.model, {"query": request.query, "documents": texts}), request, "1")


async def rerank_v2(call: Call, request: CohereRerankV2) -> CohereRanking:
    """Sort documents by their relevance for a query."""
    ask = Ask(call, request.model, {"query": request.query, "documents": request.documents})
    _require_whole(ask, request.max_tokens_per_doc, "max_tokens_per_doc")
    return await _rank(ask, request, "2")


ENDPOINTS = (
    Endpoint("POST", "/v1/embed", embed_v1, "Vectors of texts"),
    Endpoint("POST", "/v2/embed", embed_v2, "Vectors of texts"),
    Endpoint("POST", "/v1/rerank", rerank_v1, "Documents by relevance"),
    Endpoint("POST", "/v2/rerank", rerank_v2, "Documents by relevance"),
)

COHERE = Dialect("cohere", "/cohere", ENDPOINTS, lambda refused: CohereError(refused.message), CohereError)


def _ask(call: Call, request: CohereEmbedV1, fields: dict[str, Any]) -> Ask:
    if request.images:
        raise unfit("images", "the models of this server read no images: give texts")
    return Ask(
        *(call, request.model, fields, request.truncate != "NONE"),
        input_type=request.input_type,
        dimensions=getattr(request, "output_dimension", None),
        words={"dimensions": "output_dimension", "set truncate to true": "set truncate to END"},
    )


async def _by_type(ask: Ask, types: list[EmbeddingType], version: str) -> CohereByType:
    width = ask.dimensions or ask.model("vectors").vector_width
    if width % 8 and {"binary", "ubinary"} & set(types):
        problem = f"a byte has eight signs, but vectors have {width} numbers: ask for float or base64"
        raise unfit("embedding_types", problem)
    embedded = await embed(ask)
    encoded = await ask.call.offload(len(ask.values), _encode, embedded.results, types)
    return CohereByType(ask.call.id, encoded, ask.values, _meta(embedded, version))


def _encode(vectors: np.ndarray, types: list[EmbeddingType]) -> CohereVectors:
    encodings: dict[EmbeddingType, Callable[[], Any]] = {
        "float": lambda: json_numbers(vectors),
        "base64": lambda: list(map(base64_of, vectors)),
        "ubinary": lambda: np.packbits(vectors > 0, axis=1).tolist(),
        "binary": lambda: (np.packbits(vectors > 0, axis=1).astype(int) - 128).tolist(),
    }
    rows = {kind: encodings[kind]() for kind in types}
    return CohereVectors(floats=rows.pop("float", UNSET), **rows)


async def _rank(ask: Ask, request: CohereRerankV1 | CohereRerankV2, version: str) -> CohereRanking:
    ranking = await rank(ask, request.top_n)

    def shown(document: str | dict[str, str]) -> dict[str, str] | None:
        return None if not request.return_documents else {"text": document} if isinstance(document, str) else document

    results = [CohereResult(i, score, shown(request.documents[i])) for i, score, _ in ranking.results]
    return CohereRanking(ask.call.id, results, _meta(ranking, version))


def _require_whole(ask: Ask, tokens: int | None, param: str) -> None:
    """Check that a request does not ask for less of a text than the model reads. Raises Refused."""
    most = ask.model("vectors").predictor.max_length
    if tokens is not None and tokens < most:
        raise unfit(param, f"the model reads {most} tokens, special tokens included: omit it, or shorten the texts")


def _text(document: str | dict[str, str], fields: list[str] | None, number: int) -> str:
    """Return the text of a document to rank. Raises Refused if it lacks a field."""
    if isinstance(document, str):
        return document
    names = fields or ["text"]
    if missing := [name for name in names if name not in document]:
        problem = f"it has no field {missing[0][:60]!r}: add it, or name other fields in rank_fields"
        raise unfit(f"documents[{number}]", problem)
    return "\n".join(document[name] for name in names)


def _meta(answered: Answered[Any], version: str) -> CohereMeta:
    tokens = CohereTokens(answered.tokens)
    warnings = [f"{answered.truncated} of the texts were truncated"] if answered.truncated else []
    return CohereMeta(CohereVersion(version), tokens, tokens, warnings)
