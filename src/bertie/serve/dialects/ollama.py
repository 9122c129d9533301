"""The dialect of Ollama's API: vectors and the list of models.

Sources: the client ollama 0.6 and the handlers of Ollama's server, which scales the vectors of /api/embed to length 1, and
those of /api/embeddings not.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

import numpy as np

from bertie import __version__
from bertie.serve import work
from bertie.serve.dialects import ollama_messages as m
from bertie.serve.dialects.dialect import Dialect, Endpoint
from bertie.serve.exchange import Call
from bertie.serve.limits import Refused, field_of
from bertie.serve.numbers import json_numbers
from bertie.serve.operations import ServedModel
from bertie.serve.widths import require_width, shorten_vectors, unit

LATEST = ":latest"


async def embed(call: Call, request: m.OllamaEmbedRequest) -> m.OllamaEmbedResponse:
    """Return the vectors of texts, scaled to length 1."""
    model = _model(call, request.model)
    dimensions = request.dimensions or None
    require_width(model, dimensions)
    texts = request.input if isinstance(request.input, list) else [request.input] * bool(request.input)
    rows, tokens = [], 0
    if texts:
        where = field_of("input", request.input)
        found = await work.embed(call, model, texts, request.truncate, "input", where=where)
        vectors, tokens = shorten_vectors(model, found.results, dimensions), found.tokens
        rows = await call.service.offload(len(vectors), json_numbers, unit(np.stack(vectors)))
    seconds = time.monotonic() - call.started
    return m.OllamaEmbedResponse(request.model or model.name, rows, round(seconds * 1e9), 0, tokens)


async def embeddings(call: Call, request: m.OllamaEmbeddingsRequest) -> m.OllamaEmbeddingsResponse:
    """Return the vector of a text, as the model computes it."""
    model = _model(call, request.model)
    if not request.prompt:
        return m.OllamaEmbeddingsResponse([])
    found = await work.embed(call, model, [request.prompt], True, "prompt", where=lambda _: "prompt")
    return m.OllamaEmbeddingsResponse(json_numbers(found.results[0]))


async def tags(call: Call, _: None) -> m.OllamaModels:
    """List the models."""
    return m.OllamaModels(
        [
            m.OllamaModel(model.name + LATEST, model.name + LATEST, _loaded(call), _bytes(model), _details(model))
            for model in call.service.models.values()
        ]
    )


async def show(call: Call, request: m.OllamaShowRequest) -> m.OllamaDescription:
    """Describe a model."""
    model = _model(call, request.model or request.name)
    family, config = _family(model), model.predictor.model.encoder.config
    info: dict[str, str | int] = {
        "general.architecture": family,
        "general.parameter_count": model.predictor.model.size,
        f"{family}.context_length": model.predictor.max_length,
        f"{family}.embedding_length": model.vector_width,
        f"{family}.block_count": config.num_hidden_layers,
    }
    return m.OllamaDescription(_loaded(call), _details(model), info, ["embedding"])


async def version(_: Call, __: None) -> m.OllamaVersion:
    """Return the version of bertie."""
    return m.OllamaVersion(__version__)


def form(refused: Refused) -> m.OllamaError:
    """Return the message of an error."""
    return m.OllamaError(refused.message)


ENDPOINTS = (
    Endpoint("POST", "/api/embed", embed, "Vectors of texts", m.OllamaEmbedResponse, m.OllamaEmbedRequest),
    Endpoint(
        "POST", "/api/embeddings", embeddings, "Vector of a text", m.OllamaEmbeddingsResponse, m.OllamaEmbeddingsRequest
    ),
    Endpoint("GET", "/api/tags", tags, "List the models", m.OllamaModels),
    Endpoint("POST", "/api/show", show, "Describe a model", m.OllamaDescription, m.OllamaShowRequest),
    Endpoint("GET", "/api/version", version, "Version of bertie", m.OllamaVersion, protected=False),
)

OLLAMA = Dialect("ollama", "/ollama", ENDPOINTS, form, m.OllamaError)


def _model(call: Call, name: str) -> ServedModel:
    """Return a model by its name, with or without :latest. Raises Refused."""
    return call.service.model(name if name in call.service.models else name.removesuffix(LATEST), "embed")


def _loaded(call: Call) -> str:
    return datetime.fromtimestamp(call.service.started, UTC).isoformat()


def _family(model: ServedModel) -> str:
    return model.predictor.model.encoder.config.kind


def _bytes(model: ServedModel) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.predictor.model.parameters())


def _details(model: ServedModel) -> m.OllamaDetails:
    family = _family(model)
    return m.OllamaDetails(model.predictor.engine, family, [family], f"{model.predictor.model.size / 1e6:.1f}M")
