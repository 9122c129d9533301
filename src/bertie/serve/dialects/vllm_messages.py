"""The JSON messages of vLLM's endpoints for pooling models."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from bertie.serve.dialects.v1_messages import Document, Texts, Usage
from bertie.serve.tokens import Input


class VllmIgnored(Struct, kw_only=True):
    """Fields that have no effect on an answer."""

    user: str | None = None
    """Ignored."""
    request_id: str | None = None
    """Ignored: the header X-Request-Id of the answer has its id."""
    cache_salt: str | None = None
    """Ignored: this server keeps no prefixes."""


class VllmRequest(VllmIgnored, forbid_unknown_fields=True, kw_only=True):
    """What every request may say."""

    model: str = ""
    """Name of the model. It may be omitted if the server has one model."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Most tokens of a text or a pair, special tokens included: longer ones lose their ends. -1: as many as the model reads.
    Without it: a text that is too long is refused."""
    truncation_side: Literal["right"] | None = None
    """left is not offered."""
    padding: Literal["do_not_pad"] | None = None
    """max_length is not offered."""
    priority: Literal[0] = 0
    """No other is offered: requests take turns."""
    mm_processor_kwargs: None = None
    """Not offered: the models read texts."""
    use_activation: bool | None = None
    """Of scores and classes: false returns the outputs of the head, before softmax or sigmoid. Of vectors: true scales them to
    length 1; without it, the files of the model decide."""


class VllmRerankRequest(VllmRequest, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: str | Texts
    top_n: Annotated[int, Meta(ge=0)] = 0
    """Most results. 0: all documents."""
    return_documents: bool = True
    """Repeat each document in its result. vLLM always does; litellm says whether it wants that."""


class VllmScoreRequest(VllmRequest, kw_only=True):
    """Pairs to score: one text with each of several, or as many as those, each with its own.

    The fields are either text_1 and text_2, or queries and documents, or queries and items, or data_1 and data_2.
    """

    text_1: str | Texts | None = None
    text_2: str | Texts | None = None
    queries: str | Texts | None = None
    documents: str | Texts | None = None
    items: str | Texts | None = None
    data_1: str | Texts | None = None
    data_2: str | Texts | None = None


class VllmInput(VllmRequest, kw_only=True):
    """What requests with texts may say."""

    add_special_tokens: bool = True
    """Only true: the models read special tokens."""


class VllmClassifyRequest(VllmInput, kw_only=True):
    """Texts to classify."""

    input: str | Texts


class VllmPoolingRequest(VllmInput, kw_only=True):
    """Texts with the task of the model that is asked for."""

    input: Input
    """As for /v1/embeddings. Only texts for the task classify."""
    task: Literal["embed", "token_embed", "classify"]
    """embed: the vector of each text. token_embed: the vectors of its tokens. classify: the scores of its classes. It is needed,
    as versions of vLLM have different defaults."""
    encoding_format: Literal["float", "base64"] = "float"
    """base64: the bytes of the numbers. bytes and bytes_only are not offered."""
    embed_dtype: Literal["float32"] = "float32"
    """Others are not offered."""
    endianness: Literal["native", "little"] = "native"
    """Of base64. native: little."""
    dimensions: int | None = None
    """Width of the vectors: the model's own, or of the task embed a smaller one that it was trained for. Shorter vectors have
    length 1."""


class VllmAnswer(Struct, kw_only=True):
    """What every answer has."""

    id: str
    model: str
    usage: Usage


class VllmList(VllmAnswer, kw_only=True):
    """What answers with a list have."""

    object: Literal["list"] = "list"
    created: int
    """When the request was answered, in seconds since 1970."""


class VllmRank(Struct, omit_defaults=True):
    """A document with its relevance."""

    index: int
    """Number of the document in the request, from 0."""
    relevance_score: float
    document: Document | None = None


class VllmRanks(VllmAnswer, kw_only=True):
    """Documents, most relevant first."""

    results: list[VllmRank]


class VllmScore(Struct, tag_field="object", tag="score"):
    """The score of a pair."""

    index: int
    score: float


class VllmScores(VllmList, kw_only=True):
    """Scores, in the order of the pairs."""

    data: list[VllmScore]


class VllmClass(Struct):
    """The class of a text."""

    index: int
    label: str
    """That with the highest score."""
    probs: list[float]
    """The score of each class, in the order of the model's labels."""
    num_classes: int


class VllmClasses(VllmList, kw_only=True):
    """Classes, in the order of the texts."""

    data: list[VllmClass]


class VllmPooled(Struct, tag_field="object", tag="pooling"):
    """The numbers of a text."""

    index: int
    data: list[float | list[float]] | str
    """A vector, the vectors of tokens, the scores of classes, or one of these in base64."""


class VllmPooling(VllmList, kw_only=True):
    """Numbers, in the order of the texts."""

    data: list[VllmPooled]
