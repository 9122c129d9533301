"""The dialect of Ollama's API: vectors and the list of models.

Sources: the client ollama 0.6 and the handlers of Ollama's server, which scales the vectors of /api/embed, but not of
/api/embeddings, to length 1. Without effect, because no result depends on them: `options` (settings of generation and of the
machine) and `keep_alive` (models stay loaded).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from bertie import __version__
from bertie.serve import vectors
from bertie.serve.ask import Ask
from bertie.serve.exchange import Call, Dialect, Endpoint
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel

LATEST = ":latest"


class OllamaRequest(Struct, forbid_unknown_fields=True):
    """The fields of every request."""

    model: str = ""
    """Name of the model, as it is or with :latest. It may be omitted if the server has one model."""


class OllamaComputation(OllamaRequest):
    """The fields of requests for vectors."""

    options: dict[str, Any] | None = None
    """Without effect."""
    keep_alive: float | str | None = None
    """Without effect: models stay loaded."""


class OllamaEmbedRequest(OllamaComputation, kw_only=True):
    """Texts to embed."""

    input: str | list[str]
    """A text or texts. An empty text alone has no vector."""
    truncate: bool = True
    """A text with more tokens than the model reads: true truncates it, false refuses the request."""
    dimensions: int | None = None
    """Width of the vectors: the model's own, also as 0, or a smaller one that it was trained for."""


class OllamaEmbeddingsRequest(OllamaComputation):
    """A text to embed, in the older way."""

    prompt: str = ""
    """The text. An empty one has no vector."""


class OllamaShowRequest(OllamaRequest):
    """A model to describe."""

    name: str = ""
    """The same as `model`, for older clients."""
    verbose: bool = False
    """Without effect: every description is complete."""


class OllamaEmbedResponse(Struct):
    """Vectors of length 1, in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    """Nanoseconds in the server."""
    load_duration: int
    """Nanoseconds until the model was loaded: 0, because it always is."""
    prompt_eval_count: int
    """Tokens that the model read, special tokens included."""


class OllamaEmbeddingsResponse(Struct):
    """A vector, as the model computes it."""

    embedding: list[float]


class OllamaDetails(Struct):
    """A model in short."""

    format: str
    """Its engine in bertie."""
    family: str
    families: list[str]
    parameter_size: str
    """Number of its parameters: 109.5M."""


class OllamaModel(Struct):
    """A model of the server."""

    name: str
    model: str
    modified_at: str
    """When the server loaded it."""
    size: int
    """Bytes of its weights in memory."""
    details: OllamaDetails


class OllamaModels(Struct):
    """The models of the server."""

    models: list[OllamaModel]


class OllamaDescription(Struct):
    """A model and its operations."""

    modified_at: str
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]


class OllamaVersion(Struct):
    """Version of bertie."""

    version: str


class OllamaError(Struct):
    """Why a request was refused."""

    error: str


async def embed(call: Call, request: OllamaEmbedRequest) -> OllamaEmbedResponse:
    """Return the vectors of texts, scaled to length 1."""
    name, rows, tokens = _model(call, request.model).name, [], 0
    if request.input:
        settings = {"truncate": request.truncate, "dimensions": request.dimensions or None, "normalize": True}
        embedded = await vectors.embed(Ask(call, name, {"input": request.input}, **settings))
        rows, tokens = (
            await call.offload(len(embedded.results), json_numbers, embedded.results),
            embedded.tokens,
        )
    seconds = time.monotonic() - call.started
    return OllamaEmbedResponse(request.model or name, rows, round(seconds * 1e9), 0, tokens)


async def embeddings(call: Call, request: OllamaEmbeddingsRequest) -> OllamaEmbeddingsResponse:
    """Return the vector of a text, as the model computes it."""
    name = _model(call, request.model).name
    if not request.prompt:
        return OllamaEmbeddingsResponse([])
    embedded = await vectors.embed(Ask(call, name, {"prompt": request.prompt}))
    return OllamaEmbeddingsResponse(json_numbers(embedded.results[0]))


async def tags(call: Call, _: None) -> OllamaModels:
    """List the models."""
    models = []
    for model in call.service.models.values():
        name, size = model.name + LATEST, sum(weight.nbytes for weight in model.predictor.model.parameters())
        models.append(OllamaModel(name, name, _loaded(call), size, _details(model)))
    return OllamaModels(models)


async def show(call: Call, request: OllamaShowRequest) -> OllamaDescription:
    """Describe a model."""
    model = _model(call, request.model or request.name)
    config = model.predictor.model.encoder.config
    family = config.kind
    info: dict[str, str | int] = {
        "general.architecture": family,
        "general.parameter_count": model.predictor.model.size,
        f"{family}.context_length": model.predictor.max_length,
        f"{family}.embedding_length": model.vector_width,
        f"{family}.block_count": config.num_hidden_layers,
    }
    return OllamaDescription(_loaded(call), _details(model), info, ["embedding"])


async def version(_: Call, __: None) -> OllamaVersion:
    """Return the version of bertie."""
    return OllamaVersion(__version__)


ENDPOINTS = (
    Endpoint("POST", "/api/embed", embed, "Vectors of texts"),
    Endpoint("POST", "/api/embeddings", embeddings, "Vector of a text"),
    Endpoint("GET", "/api/tags", tags, "List the models"),
    Endpoint("POST", "/api/show", show, "Describe a model"),
    Endpoint("GET", "/api/version", version, "Version of bertie", protected=False),
)

OLLAMA = Dialect("ollama", "/ollama", ENDPOINTS, lambda refused: OllamaError(refused.message), OllamaError)


def _model(call: Call, name: str) -> ServedModel:
    """Return a model by its name, with or without :latest. Raises Refused."""
    return call.service.model(name if name in call.service.models else name.removesuffix(LATEST), "vectors")


def _loaded(call: Call) -> str:
    return datetime.fromtimestamp(call.service.started, UTC).isoformat()


def _details(model: ServedModel) -> OllamaDetails:
    family = model.predictor.model.encoder.config.kind
    return OllamaDetails(model.predictor.engine, family, [family], f"{model.predictor.model.size / 1e6:.1f}M")
