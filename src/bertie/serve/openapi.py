"""The OpenAPI description of the server, derived from the endpoints and the types of their messages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, get_args

import msgspec

from bertie import __version__
from bertie.base.config import field_docs, kinds
from bertie.serve.dialects import routes
from bertie.serve.dialects import v1_messages as m
from bertie.serve.exchange import Dialect, Endpoint
from bertie.tasks import AnyTask, Task

Schema = dict[str, Any]
STRING = {"type": "string"}
NULL = {"type": "null"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
# What the types of Python cannot say: a list has either texts or ids, and the fields of a prediction depend on the task.
INPUT = [
    STRING,
    *({**kind, "minItems": 1} for kind in ({"type": "array", "items": STRING}, IDS, {"type": "array", "items": IDS})),
]
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
Contents = dict[Any, Schema]  # what a body of a type is
TIMING = "Milliseconds in each stage: tokenize, queue, compute, total."


def openapi(chosen: str | None = None, root: str = "", tasks: Iterable[Task] = ()) -> Schema:
    """Return the description, as JSON values.

    Args:
        chosen: The dialect that has the paths without a base that several claim.
        root: What a proxy has before the paths.
        tasks: Those of the models, which may be none of bertie's.
    """
    shipped = [kind() for kind in kinds(AnyTask).values()]
    every = [task for task in (*shipped, *tasks) if task.facts.shape != "vectors"]
    predictions = dict.fromkeys(kind for task in every for kind in get_args(task.prediction) or (task.prediction,))
    served = list(routes(chosen))
    endpoints = [endpoint for _, _, endpoint in served]
    bodies = [kind for endpoint in endpoints for kind in (endpoint.request, endpoint.response) if kind is not None]
    types = list(dict.fromkeys([*bodies, *(dialect.error for _, dialect, _ in served), m.Status, *predictions]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    contents = {None: {"text/plain": {"schema": STRING}}}
    contents |= {kind: {"application/json": {"schema": schema}} for kind, schema in zip(types, schemas, strict=True)}
    _describe(components, types)
    for kind in {endpoint.request for endpoint in endpoints} - {None}:
        _allow_null(components[kind.__name__])
    components["EmbeddingsRequest"]["properties"]["input"]["anyOf"] = INPUT
    choices = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in predictions]
    components["PredictResponse"]["properties"]["predictions"]["items"] = {"anyOf": choices}
    paths: dict[str, Schema] = {}
    for path, dialect, endpoint in served:
        operation = _operation(path, dialect, endpoint, contents)
        paths.setdefault(path.replace(":path", ""), {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "bertie",
            "version": __version__,
            "description": "Vectors, similarities, relevance, predictions and masked words of BERT models.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        **({"servers": [{"url": root}]} if root else {}),
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "If the server has keys."}},
        },
    }


def _describe(components: Schema, types: list[Any]) -> None:
    """Add the docstrings of fields, and null to what requests may omit."""
    modules = {sys.modules[kind.__module__] for kind in types if hasattr(kind, "__module__")}
    for name, schema in components.items():
        for module in modules:
            for owner in getattr(getattr(module, name, None), "__mro__", ())[:-2]:
                for field, doc in field_docs(owner).items():
                    schema["properties"][field]["description"] = doc


def _allow_null(schema: Schema) -> None:
    """Let the fields that a request may omit be null."""
    for name, field in schema["properties"].items():
        if name not in schema.get("required", ()) and NULL not in field.get("anyOf", ()):
            kept = {key: field.pop(key) for key in ("description", "default") if key in field}
            schema["properties"][name] = {"anyOf": [*(field.get("anyOf") or [field]), NULL], **kept}


def _operation(path: str, dialect: Dialect, endpoint: Endpoint, contents: Contents) -> Schema:
    statuses = set(endpoint.statuses)
    if endpoint.protected:
        statuses |= {401}
    if endpoint.request is not None:
        statuses |= set(ERRORS)
    error = m.Status if endpoint.response is m.Status else dialect.error
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method}{path}").lower()
        if dialect.base
        else endpoint.handler.__name__,
        "summary": endpoint.summary,
        "description": endpoint.handler.__doc__,
        "responses": {
            "200": _response("Success.", contents[endpoint.response]),
            **{str(s): _response(ERRORS[s], contents[error]) for s in sorted(statuses)},
        },
    }
    if endpoint.request is not None:
        operation["requestBody"] = {"required": True, "content": contents[endpoint.request]}
    if names := re.findall(r"\{(\w+)", path):
        operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": STRING} for name in names]
    if endpoint.protected:
        operation["security"] = [{}, {"key": []}]
    return operation


def _response(description: str, content: Schema) -> Schema:
    header = {"description": TIMING, "schema": STRING}
    return {"description": description, "headers": {"Server-Timing": header}, "content": content}
