"""The dialect of vLLM's endpoints for pooling models: /vllm. Source: its protocol files of 2026."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects.v1 import HEALTH
from bertie.serve.dialects.v1_messages import (
    AtLeast0,
    CodedErrorResponse,
    Document,
    RerankResult,
    Texts,
    Usage,
    coded_form,
    cost,
)
from bertie.serve.exchange import Call, Dialect, Endpoint
from bertie.serve.limits import Refused, unfit
from bertie.serve.numbers import base64_of, raw
from bertie.serve.scores import classify as classified
from bertie.serve.scores import rank, score_pairs
from bertie.serve.vectors import Input, embed, embed_tokens, has_ids
from bertie.tokenizers import truncation

FIELDS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"))
WORDS = {"normalize": "use_activation", "set truncate to true": "set truncate_prompt_tokens to -1"}


class VllmRequest(Struct, forbid_unknown_fields=True):
    """The fields of every request."""

    user: str | None = None
    """Ignored."""
    request_id: str | None = None
    """Ignored: the header X-Request-Id of the answer has its id."""
    cache_salt: str | None = None
    """Ignored: this server keeps no prefixes."""
    model: str = ""
    """Name of the model. It may be omitted if the server has one model."""
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    """Maximum number of tokens of a text or a pair, special tokens included: longer ones lose their ends. -1: as many
    as the model reads. Without it: a text that is too long is refused."""
    truncation_side: Literal["right"] | None = None
    """left is not offered."""
    padding: Literal["do_not_pad"] | None = None
    """max_length is not offered."""
    priority: Literal[0] = 0
    """No other value is offered: requests take turns."""
    mm_processor_kwargs: None = None
    """Not offered: the models read texts."""
    use_activation: bool | None = None
    """Of scores and classes: false returns the outputs of the head, before softmax or sigmoid. Of vectors: true scales them to
    length 1; without it, the files of the model decide."""


class VllmRerankRequest(VllmRequest, kw_only=True):
    """Documents to sort by their relevance for a query."""

    query: str
    documents: str | Texts
    top_n: AtLeast0 = 0
    """Maximum number of results. 0: all documents."""
    return_documents: bool = True
    """Repeat each document in its result. vLLM always does; litellm says whether it wants that."""


class VllmScoreRequest(VllmRequest):
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


class VllmInput(VllmRequest):
    """The fields of requests with texts."""

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
    """Other types are not offered."""
    endianness: Literal["native", "little"] = "native"
    """Of base64. native: little."""
    dimensions: int | None = None
    """Width of the vectors: the model's own, or of the task embed a smaller one that it was trained for. Shorter vectors have
    length 1."""


class VllmAnswer(Struct, kw_only=True):
    """The fields of every answer."""

    id: str
    model: str
    usage: Usage


class VllmList(VllmAnswer, kw_only=True):
    """The fields of answers with a list."""

    object: Literal["list"] = "list"
    created: int
    """When the request was answered, in seconds since 1970."""


class VllmRanks(VllmAnswer, kw_only=True):
    """Documents, most relevant first."""

    results: list[RerankResult]


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
    """The class with the highest score."""
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


async def rerank(call: Call, request: VllmRerankRequest) -> VllmRanks:
    """Sort documents by their relevance for a query."""
    ask = _ask(call, request, {"query": request.query, "documents": request.documents})
    ranking, shown = await rank(ask, request.top_n or None), request.return_documents
    results = [RerankResult(i, value, Document(text) if shown else None) for i, value, text in ranking.results]
    return VllmRanks(results=results, **_answer("rerank", call, ranking))


async def score(call: Call, request: VllmScoreRequest) -> VllmScores:
    """Score pairs of texts: the score of a model for pairs, or else the similarity of their vectors."""
    fields = {name: getattr(request, name) for name in _fields(request)}
    first, second = fields
    counts = [len(value) if isinstance(value, list) else 1 for value in fields.values()]
    if counts[0] not in (1, counts[1]):
        raise unfit(first, f"it has {counts[0]} texts and {second} {counts[1]}: give one, or as many as in {second}")
    scored = await score_pairs(_ask(call, request, fields))
    data = [VllmScore(i, value) for i, value in enumerate(scored.results)]
    return VllmScores(data=data, **_listed("score", call, scored))


async def classify(call: Call, request: VllmClassifyRequest) -> VllmClasses:
    """Return the classes of texts."""
    scored = await classified(_ask(call, request, {"input": request.input}))
    data = [
        VllmClass(i, scores.ranked[0][0], list(scores.probabilities.values()), len(scores.probabilities))
        for i, scores in enumerate(scored.results)
    ]
    return VllmClasses(data=data, **_listed("classify", call, scored))


async def pooling(call: Call, request: VllmPoolingRequest) -> VllmPooling:
    """Return vectors of texts, vectors of their tokens, or scores of their classes."""
    ask = _ask(call, request, {"input": request.input}, dimensions=request.dimensions)
    if request.task != "embed" and request.dimensions not in (None, ask.model("vectors").vector_width):
        raise ask.refused("dimensions", "only the vectors of texts can be shortened: omit it", "dimensions")
    pooled: Answered[Any]
    if request.task == "classify":
        if has_ids(ask):
            raise unfit("input", "give texts, as only texts have classes")
        pooled = await classified(ask)
        rows = [np.array(list(scores.probabilities.values()), np.float32) for scores in pooled.results]
    elif request.task == "embed":
        pooled = await embed(ask)
        rows = pooled.results
    else:
        pooled = await embed_tokens(ask, ask.normalize or ask.model("tokens").normalizes)
        rows = pooled.results
    data = await call.offload(pooled.tokens, _pooled, rows, request.encoding_format)
    return VllmPooling(data=data, **_listed("pool", call, pooled))


ENDPOINTS = (
    *(Endpoint("POST", path, rerank, "Documents by relevance") for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(Endpoint("POST", path, score, "Scores of pairs") for path in ("/score", "/v1/score")),
    Endpoint("POST", "/classify", classify, "Classes of texts"),
    Endpoint("POST", "/pooling", pooling, "Vectors of texts and tokens"),
    HEALTH,
)

VLLM = Dialect("vllm", "/vllm", ENDPOINTS, coded_form, CodedErrorResponse)


def _ask(call: Call, request: VllmRequest, fields: dict[str, Any], dimensions: int | None = None) -> Ask:
    """Return the request in the terms of bertie. Raises Refused if it wants a number of tokens that is too small or too large."""
    if isinstance(request, VllmInput) and not request.add_special_tokens:
        raise unfit("add_special_tokens", "the models read special tokens: omit it")
    most = None if request.truncate_prompt_tokens == -1 else request.truncate_prompt_tokens
    if most is not None:
        model = call.service.model(request.model, "vectors").predictor
        least = truncation.special_tokens(model.tokenizer, 2, separate="texts") + 2
        if not least <= most <= model.max_length:
            raise unfit("truncate_prompt_tokens", f"give -1, or a number from {least} to {model.max_length}")
    return Ask(
        *(call, request.model, fields, request.truncate_prompt_tokens is not None, most),
        dimensions=dimensions,
        normalize=request.use_activation,
        scale="raw" if request.use_activation is False else "model",
        words=WORDS,
    )


def _fields(request: VllmScoreRequest) -> tuple[str, str]:
    """Return the names of the two fields that have the texts. Raises Refused."""
    named = {name for pair in FIELDS for name in pair if getattr(request, name) is not None}
    for pair in FIELDS:
        if named == set(pair):
            return pair
    message = f"{', '.join(sorted(named)) or 'the texts are missing'}: give {', or '.join(map(' and '.join, FIELDS))}"
    raise Refused(422, "validation", message, min(named, default=None))


def _pooled(rows: list[np.ndarray], encoding_format: str) -> Any:
    """Return the numbers of each text, encoded."""
    encode = base64_of if encoding_format == "base64" else np.ndarray.tolist
    return raw(VllmPooled(number, encode(row)) for number, row in enumerate(rows))


def _answer(kind: str, call: Call, answered: Answered[Any]) -> dict[str, Any]:
    """Return the fields of every answer."""
    return {"id": f"{kind}-{call.id}", **cost(answered)}


def _listed(kind: str, call: Call, answered: Answered[Any]) -> dict[str, Any]:
    """Return the fields of answers with a list."""
    return {**_answer(kind, call, answered), "created": int(time.time())}
