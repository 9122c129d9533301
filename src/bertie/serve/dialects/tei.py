"""The dialect of text-embeddings-inference: /tei, and /tei/models/NAME where the server has several models.

Source: its OpenAPI description, version 1.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from bertie import __version__
from bertie.base.contracts import Sequence
from bertie.predict.vectors import cosines, unit
from bertie.serve import scores, vectors
from bertie.serve.ask import Answered, Ask
from bertie.serve.dialects.v1 import HEALTH, metrics
from bertie.serve.dialects.v1_messages import AtLeast1, ClassScore, Texts
from bertie.serve.exchange import Call, Dialect, Endpoint, invalid
from bertie.serve.limits import Refused, unfit
from bertie.serve.numbers import json_numbers, raw
from bertie.serve.operations import ServedModel
from bertie.serve.vectors import Input

Direction = Literal["Right", "right"]
PredictInput = str | list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]]
"""A text, a pair of texts, or a list of lists with one text or two."""


class TeiRequest(Struct, forbid_unknown_fields=True):
    """The fields of requests with texts that may be truncated."""

    truncate: bool = False
    """false: a text with more tokens than the model reads is refused with status 413."""
    truncation_direction: Direction = "Right"
    """Only Right: a text that is too long loses its end. Left is not offered."""


class TeiEmbedAllRequest(TeiRequest, kw_only=True):
    """Texts whose tokens get vectors."""

    inputs: Input
    """As for /v1/embeddings."""
    prompt_name: str | None = None
    """Name of the model's prompt that is put before each text. Without it: none, even if the model has a default."""


class TeiEmbedRequest(TeiEmbedAllRequest, kw_only=True):
    """Texts to embed."""

    normalize: bool = True
    """Whether to scale each vector to length 1."""
    dimensions: AtLeast1 | None = None
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


class TeiSimilarityParameters(Struct, forbid_unknown_fields=True):
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


class TeiRootRequest(Struct, forbid_unknown_fields=True):
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
    model_dtype: str
    model_type: dict[str, Any]
    """{"embedding": …}, {"classifier": …} or {"reranker": …}."""
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_client_batch_size: int
    version: str = __version__
    """Version of bertie."""
    auto_truncate: bool = False
    tokenization_workers: int = 1
    model_sha: None = None
    max_batch_requests: None = None
    sha: None = None
    docker_label: None = None


class TeiError(Struct):
    """Why a request was refused."""

    error: str
    error_type: Literal["Validation", "Tokenizer", "Overloaded", "Backend", "Unhealthy"]


async def embed(call: Call, request: TeiEmbedRequest) -> list[list[float]]:
    """Return the vectors of texts or of token ids."""
    width = request.dimensions
    ask = _ask(call, request, {"inputs": request.inputs}, normalize=None if request.normalize else False)
    if width is not None and width > (most := ask.model("vectors").vector_width):
        raise ask.refused("dimensions", f"the vectors have {most} numbers: ask for fewer")
    rows = (await vectors.embed(ask)).results[:, :width]
    return await call.offload(len(rows), json_numbers, unit(rows) if request.normalize else rows)


async def embed_all(call: Call, request: TeiEmbedAllRequest) -> list[list[list[float]]]:
    """Return the vectors of all tokens of texts, special tokens included, without pooling."""
    embedded = await vectors.embed_tokens(_ask(call, request, {"inputs": request.inputs}), normalize=False)
    return await call.offload(embedded.tokens, lambda: raw(map(json_numbers, embedded.results)))


async def predict(call: Call, request: TeiPredictRequest) -> list[ClassScore | list[ClassScore]]:
    """Return the classes of texts or pairs of texts, most probable first."""
    inputs = _examples(request.inputs)
    scale = "raw" if request.raw_scores else "sigmoid"
    scored = await scores.classify(_ask(call, request, {"inputs": inputs}, scale=scale))
    results = [[ClassScore(score, label) for label, score in text.ranked] for text in scored.results]
    return cast(Any, results if isinstance(inputs, list) else results[0])


async def rerank(call: Call, request: TeiRerankRequest) -> list[TeiRank]:
    """Sort texts by their relevance for a query."""
    fields = {"query": request.query, "texts": request.texts}
    ranking = await scores.rank(_ask(call, request, fields, scale="raw" if request.raw_scores else "sigmoid"))
    return [TeiRank(i, score, text if request.return_text else None) for i, score, text in ranking.results]


async def similarity(call: Call, request: TeiSimilarityRequest) -> list[float]:
    """Return the cosine of a text with each of other texts."""
    fields = {f"inputs.{name}": getattr(request.inputs, name) for name in ("source_sentence", "sentences")}
    rows = (await vectors.embed(_ask(call, request.parameters or TeiSimilarityParameters(), fields))).results
    return json_numbers(cosines(rows[:1], rows[1:])[0])


async def tokenize(call: Call, request: TeiTokenizeRequest) -> list[list[TeiToken]]:
    """Return the tokens of texts. The header X-Vocabulary has the fingerprint that requests with token ids need."""
    ask = _ask(call, request, {"inputs": request.inputs})
    read = await vectors.tokenize(ask)
    prompt = vectors.prompt_of(ask, read.model)
    texts = [prompt + text for text in ask.values]
    call.headers[vectors.VOCABULARY] = vectors.fingerprint(read.model)
    return await call.offload(len(texts), _tokens, texts, read, request.add_special_tokens)


async def root(call: Call, request: TeiRootRequest) -> list[Any]:
    """Embed, predict or rerank, depending on the kind of the model (`model_type` of /info)."""
    handlers: dict[str, tuple[Callable[..., Any], Any]] = {
        "embedding": (embed, TeiEmbedRequest),
        "classifier": (predict, TeiPredictRequest),
        "reranker": (rerank, TeiRerankRequest),
    }
    handler, message_type = handlers[_kind(_model(call))]
    fields = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not UNSET}
    try:
        message = msgspec.convert(fields, message_type)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    return await handler(call, message)


async def info(call: Call, _: None) -> TeiInfo:
    """Describe the model and the limits of the server."""
    model = _model(call)
    kind, limits = _kind(model), call.service.limits
    facts: dict[str, Any] = {"pooling": "+".join(model.predictor.text_embedding.pooling)}
    if kind != "embedding":
        labels = dict(enumerate(model.predicting.labels or (scores.ONLY,)))
        facts = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}}
    return TeiInfo(
        model_id=model.name,
        model_dtype=str(next(model.predictor.model.parameters()).dtype).removeprefix("torch."),
        model_type={kind: facts},
        max_concurrent_requests=limits.max_connections,
        max_input_length=model.predictor.max_length,
        max_batch_tokens=call.service.queue.batch_tokens,
        max_client_batch_size=limits.max_items,
    )


def form(refused: Refused) -> TeiError:
    """Return the message of an error. A text that is too long has status 413, as in text-embeddings-inference."""
    if refused.reason == "too_long":
        refused.status = 413
    kind = {429: "Overloaded", 500: "Backend", 503: "Unhealthy", 504: "Backend"}.get(refused.status, "Validation")
    return TeiError(refused.message, cast(Any, "Tokenizer" if refused.reason == "input" else kind))


_OF_MODELS = (
    Endpoint("POST", "/embed", embed, "Vectors of texts"),
    Endpoint("POST", "/embed_all", embed_all, "Vectors of tokens"),
    Endpoint("POST", "/predict", predict, "Classes"),
    Endpoint("POST", "/rerank", rerank, "Texts by relevance"),
    Endpoint("POST", "/similarity", similarity, "Cosines of texts"),
    Endpoint("POST", "/tokenize", tokenize, "Tokens of texts"),
    Endpoint("POST", "/", root, "Vectors, classes or ranks, by the kind of the model"),
    Endpoint("GET", "/info", info, "Model and limits", statuses=(404, 422, 503)),
)
ENDPOINTS = (
    *_OF_MODELS,
    *(replace(item, path=f"/models/{{model:path}}{item.path}".rstrip("/"), bare=False) for item in _OF_MODELS),
    HEALTH,
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus"),
)

TEI = Dialect("tei", "/tei", ENDPOINTS, form, TeiError)


def _ask(call: Call, request: Any, fields: dict[str, Any], **settings: Any) -> Ask:
    """Return the request in the terms of bertie. A request without a prompt's name has none, also if the model has a default."""
    truncate, prompt_name = bool(getattr(request, "truncate", True)), getattr(request, "prompt_name", None)
    return Ask(call, _name(call), fields, truncate, prompt_name=prompt_name, default_prompt=False, **settings)


def _name(call: Call) -> str:
    """Return the name of the model in the path of a request. Raises Refused if it has none, and there are several models."""
    name, models = call.request.path_params.get("model", ""), call.service.models
    if not name and len(models) > 1:
        remedy = f"use a base URL with the model, such as /tei/models/{next(iter(models))}"
        raise Refused(422, "model", f"the path names no model: {remedy}; the models are {', '.join(models)}", "model")
    return name


def _model(call: Call) -> ServedModel:
    return call.service.model(_name(call), "vectors")


def _kind(model: ServedModel) -> str:
    """Return the kind of a model in the words of text-embeddings-inference."""
    task = model.task
    if task is None or task.facts.shape != "text":
        return "embedding"
    return "classifier" if task.labels or task.paired is False else "reranker"


def _examples(inputs: PredictInput) -> Any:
    """Return the inputs of a task: a list, or a single one, of which a pair is a tuple. Raises Refused."""
    if isinstance(inputs, str):
        return inputs
    kinds = set(map(type, inputs))
    if kinds == {str} and len(inputs) <= 2:
        return tuple(inputs) if len(inputs) == 2 else inputs[0]
    if kinds != {list}:
        raise unfit("inputs", "give a text, a pair of two texts, or a batch of lists with one text or two each")
    return [texts[0] if len(texts) == 1 else texts for texts in inputs]


def _tokens(texts: list[str], read: Answered[list[Sequence]], special: bool) -> Any:
    """Return the tokens of each text, encoded."""
    vocabulary = read.model.predictor.text_tokenizer.vocabulary

    def tokens(text: str, sequence: Sequence) -> list[TeiToken]:
        inside, ids = vectors.text_slice(read.model, sequence), sequence.input_ids.tolist()
        assert sequence.offsets is not None
        return [
            TeiToken(ids[i], text[start:stop], False, start, stop)
            if inside.start <= i < inside.stop
            else TeiToken(ids[i], vocabulary[ids[i]], True, None, None)
            for i, (start, stop) in enumerate(sequence.offsets.tolist())
            if special or inside.start <= i < inside.stop
        ]

    return raw(map(tokens, texts, read.results))
