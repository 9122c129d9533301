"""The OpenAPI description of the server, derived from the endpoints and the types of their messages."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from bertie import __version__
from bertie.config import field_docs
from bertie.serve import messages as m
from bertie.serve.api import ENDPOINTS, Endpoint
from bertie.tasks import AnyTask

STRING = {"type": "string"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
# What the types of Python cannot say: a list has either texts or ids, and the fields of a prediction depend on the task.
INPUT = [
    STRING,
    *({**kind, "minItems": 1} for kind in ({"type": "array", "items": STRING}, IDS, {"type": "array", "items": IDS})),
]
SERVED = [task for task in (kind() for kind in get_args(AnyTask)) if task.facts.shape != "vectors"]
PREDICTIONS = list(dict.fromkeys(task.prediction for task in SERVED))
ERRORS = {
    400: "The body is not JSON.",
    401: "The key is missing or wrong.",
    404: "The model is unknown.",
    405: "The path has no such method.",
    408: "The body took too long to arrive.",
    413: "The request is too large: bytes, texts, characters or tokens.",
    415: "The body is not declared as JSON, or is compressed.",
    422: "A field is wrong, or the model does not offer this.",
    429: "The queue is full. Retry-After says when to try again.",
    500: "The model failed.",
    503: "The model is not available, or there are too many connections.",
    504: "The request took too long.",
}
TIMING = "Milliseconds in each stage: tokenize, queue, compute, total."


def openapi() -> dict[str, Any]:
    """Return the description, as JSON values."""
    types = [kind for endpoint in ENDPOINTS for kind in (endpoint.request, endpoint.response) if kind is not None]
    _, components = msgspec.json.schema_components(
        [*dict.fromkeys(types), m.ErrorResponse, *PREDICTIONS], ref_template="#/components/schemas/{name}"
    )
    for name, schema in components.items():
        for owner in getattr(getattr(m, name, None), "__mro__", ())[:-2]:
            for field, doc in field_docs(owner).items():
                schema["properties"][field]["description"] = doc
    components["EmbeddingsRequest"]["properties"]["input"]["anyOf"] = INPUT
    choices = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in PREDICTIONS]
    components["PredictResponse"]["properties"]["predictions"]["items"] = {"anyOf": choices}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        paths.setdefault(endpoint.path.replace(":path", ""), {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bertie",
            "version": __version__,
            "description": "Vectors, similarities, relevance, predictions and masked words of BERT models.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "If the server has keys."}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    statuses = set(endpoint.statuses)
    if endpoint.protected:
        statuses |= {401}
    if endpoint.request is not None:
        statuses |= set(ERRORS)
    is_status = endpoint.response is m.Status
    found: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "description": endpoint.handler.__doc__,
        "responses": {
            "200": _response("Success.", endpoint.response),
            **{str(s): _response(ERRORS[s], m.Status if is_status else m.ErrorResponse) for s in sorted(statuses)},
        },
    }
    if endpoint.request is not None:
        found["requestBody"] = {"required": True, "content": _content(endpoint.request)}
    if "{" in endpoint.path:
        found["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": STRING}]
    if endpoint.protected:
        found["security"] = [{}, {"key": []}]
    return found


def _response(description: str, kind: type | None) -> dict[str, Any]:
    header = {"description": TIMING, "schema": STRING}
    return {"description": description, "headers": {"Server-Timing": header}, "content": _content(kind)}


def _content(kind: type | None) -> dict[str, Any]:
    if kind is None:
        return {"text/plain": {"schema": STRING}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}}
