"""The messages of Ollama's API for vectors and models.

Without effect, because no result depends on them: `options` (settings of generation and of the machine) and `keep_alive`
(models stay loaded).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class OllamaRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What every request may say."""

    model: str = ""
    """Name of the model, as it is or with :latest. It may be omitted if the server has one model."""


class OllamaComputation(OllamaRequest, kw_only=True):
    """What requests for vectors may say."""

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


class OllamaEmbeddingsRequest(OllamaComputation, kw_only=True):
    """A text to embed, in the older way."""

    prompt: str = ""
    """The text. An empty one has no vector."""


class OllamaShowRequest(OllamaRequest, kw_only=True):
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
    """What a model is."""

    format: str
    """What computes it: bertie's engine."""
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
    """What a model is and offers."""

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
