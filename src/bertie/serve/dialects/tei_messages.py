"""The JSON messages of text-embeddings-inference."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from bertie.serve.dialects.v1_messages import Texts
from bertie.serve.tokens import Input

Direction = Literal["Left", "Right", "left", "right"]
PredictInput = str | list[str | list[str]]
"""A text, a pair of texts, or a list of lists with one text or two."""


class TeiRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What requests with texts that may be truncated may say."""

    truncate: bool = False
    """false: a text with more tokens than the model reads is refused with status 413."""
    truncation_direction: Direction = "Right"
    """Only Right: what is left of a text that is too long is its beginning."""


class TeiEmbedAllRequest(TeiRequest, kw_only=True):
    """Texts whose tokens get vectors."""

    inputs: Input
    """As for /v1/embeddings."""
    prompt_name: str | None = None
    """Name of the model's prompt that is put before each text. Without it: none, also if the model has a default."""


class TeiEmbedRequest(TeiEmbedAllRequest, kw_only=True):
    """Texts to embed."""

    normalize: bool = True
    """Whether to scale each vector to length 1."""
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    """How many numbers of each vector to return, the first ones. They are taken before normalization."""


class TeiPredictRequest(TeiRequest, kw_only=True):
    """Texts to classify."""

    inputs: PredictInput
    """A text, a pair of texts as a list of two, or a batch: a list of lists with one text or two."""
    raw_scores: bool = False
    """Return the outputs of the head, before softmax or sigmoid."""


class TeiRerankRequest(TeiRequest, kw_only=True):
    """Texts to sort by their relevance for a query."""

    query: str
    texts: Texts
    raw_scores: bool = False
    """Of a reranker: return the output of the head instead of its sigmoid."""
    return_text: bool = False
    """Repeat each text in its result."""


class TeiSimilarityInput(Struct, forbid_unknown_fields=True):
    """A text, and texts to compare it with."""

    source_sentence: str
    sentences: Texts


class TeiSimilarityParameters(Struct, forbid_unknown_fields=True, kw_only=True):
    """How to embed the texts."""

    truncate: bool | None = False
    """As for /embed."""
    truncation_direction: Direction | None = "Right"
    """As for /embed."""
    prompt_name: str | None = None
    """As for /embed."""


class TeiSimilarityRequest(Struct, forbid_unknown_fields=True):
    """Texts to compare by the cosines of their vectors."""

    inputs: TeiSimilarityInput
    parameters: TeiSimilarityParameters | None = None


class TeiTokenizeRequest(Struct, forbid_unknown_fields=True):
    """Texts to tokenize. They are never truncated."""

    inputs: str | Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None
    """As for /embed."""


class TeiRootRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request to embed, to predict or to rerank, by the kind of the model."""

    inputs: str | list[str | int | list[str | int]] | UnsetType = UNSET
    query: str | UnsetType = UNSET
    texts: Texts | UnsetType = UNSET
    truncate: bool | UnsetType = UNSET
    truncation_direction: Direction | UnsetType = UNSET
    prompt_name: str | UnsetType = UNSET
    normalize: bool | UnsetType = UNSET
    dimensions: int | UnsetType = UNSET
    raw_scores: bool | UnsetType = UNSET
    return_text: bool | UnsetType = UNSET


class TeiPrediction(Struct):
    """A class with its score."""

    score: float
    label: str


class TeiRank(Struct, omit_defaults=True):
    """A text with its relevance."""

    index: int
    """Number of the text in the request, from 0."""
    score: float
    text: str | None = None


class TeiToken(Struct):
    """A token."""

    id: int
    text: str
    """Its characters in the text; of a special token, its entry in the vocabulary."""
    special: bool
    start: int | None
    """Its first character in prompt and text. null: a special token."""
    stop: int | None


class TeiInfo(Struct):
    """The model and the limits of the server."""

    model_id: str
    model_sha: None
    model_dtype: str
    model_type: dict[str, Any]
    """{"embedding": …}, {"classifier": …} or {"reranker": …}."""
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    """Version of bertie."""
    sha: None
    docker_label: None


class TeiError(Struct):
    """Why a request was refused."""

    error: str
    error_type: Literal["Validation", "Tokenizer", "Overloaded", "Backend", "Unhealthy"]
