"""The JSON messages of /v1: requests, responses and errors. `openapi.py` derives the schema from them.

The docstrings of fields are the descriptions of the schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from bertie.retrieval.index import Hit
from bertie.serve.ask import Answered
from bertie.serve.limits import ErrorType, Refused
from bertie.serve.operations import MAX_TOP_K
from bertie.serve.predictions import Example
from bertie.serve.vectors import Input
from bertie.tasks.aggregation import Strategy

AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
Texts = Annotated[list[str], Meta(min_length=1)]


class Named(Struct, forbid_unknown_fields=True):
    """The fields of every request."""

    model: str = ""
    """Name of the model. It may be omitted if the server has one model."""


class Request(Named):
    """The fields of requests with texts that may be truncated."""

    truncate: bool = True
    """A text with more tokens than the model reads: true truncates it, and `usage.truncated` counts it; false refuses the
    request with status 422."""


class EmbeddingsRequest(Request, kw_only=True):
    """Texts to embed, as in OpenAI's API."""

    input: Input
    """A text, a list of texts, a list of token ids, or a list of lists of token ids. Token ids need the header X-Vocabulary with
    the fingerprint that /v1/tokenize returns. [CLS] and [SEP] are added to ids that do not begin and end with them."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32 numbers."""
    dimensions: int | None = None
    """Width of the vectors: the model's own, or a smaller one that it was trained for. Shorter vectors have length 1."""
    prompt_name: str | None = None
    """Name of the model's prompt that is put before each text, such as query or document. Without it: the model's default,
    usually none."""
    input_type: str | None = None
    """Instead of `prompt_name`: query, document, classification or clustering. The model's prompt for it is put before each
    text."""
    user: str | None = None
    """Accepted for compatibility, and ignored."""


class SimilarityRequest(Request, kw_only=True):
    """Texts to compare by the cosines of their vectors, or as the model's files say."""

    texts: Texts
    others: Texts | None = None
    """Texts to compare with. Without them, `texts` are compared with each other."""
    prompt_name: str | None = None
    """As for embeddings."""


class TokenizeRequest(Named, kw_only=True):
    """Texts to tokenize. They are never truncated."""

    texts: Texts
    special_tokens: bool = True
    """Whether to add special tokens."""
    prompt_name: str | None = None
    """As for embeddings."""


class Document(Struct, forbid_unknown_fields=True):
    """A document."""

    text: str


class RerankRequest(Request, kw_only=True):
    """Documents to sort by their relevance for a query, as in the APIs of Jina and Cohere."""

    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: AtLeast1 | None = None
    """Maximum number of results. Without it: all documents."""
    return_documents: bool = False
    """Repeat the text of each document in its result."""
    label: str = ""
    """Of a classifier for pairs: the class that means "relevant", if its name does not tell."""


class SearchRequest(Request, kw_only=True):
    """A query to an index."""

    query: str
    top_k: Annotated[int, Meta(ge=1, le=MAX_TOP_K)] = 5
    """Maximum number of passages."""


class PredictRequest(Request, kw_only=True):
    """Examples to predict for."""

    inputs: Annotated[list[Example], Meta(min_length=1)]
    """Texts, pairs of texts, lists of words, lists of a context and its endings, or objects with the columns of the
    training data, as the task of the model needs them. Labels are not needed, and not read."""
    aggregation_strategy: Strategy | None = None
    """Of a tagger: how predictions for subwords become entities, as in transformers' pipeline. Without it: words, as the model
    was trained."""


class FillMaskRequest(Named, kw_only=True):
    """Texts with masks to fill."""

    inputs: Texts
    """Texts with at least one [MASK], or the model's own mask token. They are never truncated."""
    top_k: Annotated[int, Meta(ge=1, le=MAX_TOP_K)] = 5
    """Predictions per mask."""


class AttentionRequest(Named, kw_only=True):
    """A text, or a pair of texts, whose attention is asked for."""

    text: str
    """The text. It is never truncated."""
    text_pair: str | None = None
    """Second text of a pair."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of little-endian float32 numbers."""


class Usage(Struct):
    """The cost of a request."""

    prompt_tokens: int
    """Tokens that the model read, special tokens included."""
    total_tokens: int
    """The same number."""
    truncated: int = 0
    """Texts that were truncated."""


def cost(answered: Answered[Any]) -> dict[str, Any]:
    """Return the fields of every answer that name the model and the cost of the request."""
    usage = Usage(answered.tokens, answered.tokens, answered.truncated)
    return {"model": answered.model.name, "usage": usage}


class ModelAnswer(Struct, kw_only=True):
    """The last fields of every answer of a model."""

    model: str
    usage: Usage


class Embedding(Struct, tag_field="object", tag="embedding"):
    """The vector of a text."""

    index: int
    embedding: list[float] | str


class EmbeddingsResponse(ModelAnswer, tag_field="object", tag="list"):
    """Vectors, in the order of the texts."""

    data: list[Embedding]


class SimilarityResponse(ModelAnswer):
    """Cosines: one row for each of `texts`, with one number for each of `others`."""

    similarities: list[list[float]]


class TokenList(Struct):
    """The tokens of a text."""

    ids: list[int]
    tokens: list[str]
    """Their entries in the vocabulary."""
    offsets: list[Annotated[list[int], Meta(min_length=2, max_length=2)] | None]
    """Start and end of each token in characters of prompt and text. null: a special token that the text does not have."""


class TokenizeResponse(Struct):
    """Tokens, in the order of the texts."""

    model: str
    vocabulary: str
    """Fingerprint of the vocabulary, also in the header X-Vocabulary. Requests with token ids have it in this header."""
    results: list[TokenList]


class RerankResult(Struct, omit_defaults=True):
    """A document with its relevance."""

    index: int
    """Number of the document in the request, from 0."""
    relevance_score: float
    """The number or probability of a model for pairs, or else the similarity of the vectors, with the model's prompts
    for queries and documents."""
    document: Document | None = None


class RerankResponse(ModelAnswer, tag_field="object", tag="list"):
    """Documents, most relevant first."""

    id: str
    results: list[RerankResult]
    method: str
    """The origin of the scores: cross-encoder, or how vectors were compared, usually cosine."""


class SearchResponse(ModelAnswer):
    """Passages, best first."""

    results: list[Hit]


class PredictResponse(ModelAnswer):
    """Predictions, in the order of the inputs."""

    task: str
    """Kind of the task, which determines the fields of the predictions."""
    predictions: list[Any]  # narrower in the schema: `openapi.openapi`


class MaskCandidate(Struct):
    """A token predicted at a [MASK]."""

    token: str
    text: str
    """How it continues the text: with a space before it if it begins a word."""
    probability: float


class FillMaskResponse(ModelAnswer):
    """For each text and each of its masks the most probable tokens, most probable first."""

    results: list[list[list[MaskCandidate]]]


class AttentionResponse(ModelAnswer):
    """The attention probabilities of every head: how much each token attends to each token."""

    tokens: list[str]
    """The tokens, special tokens included."""
    shown: list[str]
    """The same, but instead of [UNK] the characters of the text that it stands for."""
    special: list[int]
    """Numbers of the special tokens, from 0."""
    layers: int
    heads: int
    """Heads per layer."""
    attention: list[list[list[list[float]]]] | str
    """By layer, head, attending token and attended token. The probabilities of an attending token have the sum 1. Numbers
    are rounded to five decimals."""


class ModelCard(Struct, tag_field="object", tag="model"):
    """A model of the server."""

    id: str
    created: int
    """When the server loaded it, in seconds since 1970."""
    owned_by: str
    task: str | None
    """Kind of the task that it was fine-tuned for."""
    labels: list[str]
    paired: bool | None
    """Whether the task reads pairs of texts. null: both, or something else."""
    sentence_vectors: bool
    """Whether the model was trained for the vectors of sentences: its files say how to compute them."""
    mask_token: str | None
    """The token for /v1/fill-mask. null: the model fills no masks."""
    languages: list[str]
    """Languages of a model with language embeddings."""
    language: str
    """The language that such a model reads texts in."""
    engine: str
    """The engine of the model."""
    layers: int | None
    heads: int | None
    """Attention heads per layer."""
    attention_tokens: int | None
    """Tokens of the longest text for /v1/attention. null: the model shows no attention."""
    operations: list[str]
    """The endpoints of /v1/ that it serves."""
    max_length: int
    """Tokens of the longest sequence, special tokens included."""
    vector_width: int


class ModelList(Struct, tag_field="object", tag="list"):
    """The models of the server."""

    data: list[ModelCard]


class Error(Struct):
    """Why a request was refused."""

    message: str
    type: ErrorType
    param: str | None
    """The field that is wrong."""
    code: str
    """The reason in one word."""


class ErrorResponse(Struct):
    """The response to a request that was refused."""

    error: Error


class Status(Struct):
    """Whether the server lives, or is ready."""

    status: Literal["ok", "unavailable"]
    reasons: list[str]


class ClassScore(Struct):
    """A class with its score."""

    score: float
    label: str


class CodedError(Struct):
    """Why a request was refused, in the form of infinity and vLLM: as OpenAI's, with the status as the code."""

    message: str
    type: ErrorType
    param: str | None
    """The field that is wrong."""
    code: int
    """The status."""


class CodedErrorResponse(Struct):
    """The response to a request that was refused."""

    error: CodedError


def coded_form(refused: Refused) -> CodedErrorResponse:
    """Return the message of an error."""
    return CodedErrorResponse(CodedError(refused.message, refused.type, refused.param, refused.status))
