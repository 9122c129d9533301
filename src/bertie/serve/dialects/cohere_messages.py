"""The messages of Cohere's API for vectors and reranking, versions 1 and 2.

Without effect, because no result depends on them: `priority` (requests are computed in turns), and `max_chunks_per_doc` 1,
`max_tokens` and `max_tokens_per_doc` that are not below what the model reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
CohereCount = Annotated[int, Meta(ge=1)]


class CohereRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every request may say."""

    model: str = ""
    """Name of the model. It may be omitted if the server has one model."""


class CohereEmbedV1(CohereRequest, kw_only=True):
    """Texts to embed."""

    texts: list[str] | None = None
    images: list[str] | None = None
    """Refused: bertie reads texts."""
    input_type: Literal["search_query", "search_document", "classification", "clustering", "image"] | None = None
    """The model's prompt for it is put before each text. image is refused."""
    embedding_types: list[EmbeddingType] | None = None
    """float, base64 (bytes of little-endian float32 numbers), ubinary (the signs of the numbers, eight in a byte) or binary
    (the same minus 128). int8 and uint8 are refused: Cohere does not publish their ranges."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """NONE refuses texts with more tokens than the model reads. END, the default, truncates their end. START is refused."""


class CohereContent(Struct, forbid_unknown_fields=True, kw_only=True):
    """A part of an input."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: Any = None
    """Refused: bertie reads texts."""


class CohereInput(Struct, forbid_unknown_fields=True):
    """An input of one part, a text."""

    content: list[CohereContent]


class CohereEmbedV2(CohereEmbedV1, kw_only=True):
    """Texts to embed, as `texts` or as `inputs`."""

    inputs: list[CohereInput] | None = None
    max_tokens: CohereCount | None = None
    """Tokens of a text that are read. Refused if the model reads more."""
    output_dimension: int | None = None
    """Width of the vectors: the model's own, or a smaller one that it was trained for. Shorter vectors have length 1."""
    priority: int | None = None
    """Without effect."""


class CohereRerankV1(CohereRequest, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: Annotated[list[str | dict[str, str]], Meta(min_length=1)]
    top_n: CohereCount | None = None
    """Most results. Without it: all documents."""
    rank_fields: Annotated[list[str], Meta(min_length=1)] | None = None
    """Of documents that are objects: the fields to read, one line each in this order. Without it: text."""
    return_documents: bool = False
    """Repeat each document in its result."""
    max_chunks_per_doc: CohereCount | None = None
    """Only 1 is possible: of a long document, the beginning is read."""


class CohereRerankV2(CohereRequest, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: Annotated[list[str], Meta(min_length=1)]
    top_n: CohereCount | None = None
    """Most results. Without it: all documents."""
    return_documents: bool = False
    """Repeat each document in its result. Newer clients of Cohere do not send it, others do."""
    max_tokens_per_doc: CohereCount | None = None
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
    """What a request cost. `billed_units` repeats the tokens for clients that read only these."""

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
