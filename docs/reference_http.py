"""The page of the HTTP API, for docs/generate_reference.py: the endpoints of each dialect, and the fields of their messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bertie.serve.dialects import DIALECTS, routes
from bertie.serve.exchange import Dialect
from reference_markdown import Row, cell, code, codes, entries

Schema = dict[str, Any]
TITLES = {
    **{"v1": "bertie and OpenAI", "tei": "text-embeddings-inference", "infinity": "infinity", "vllm": "vLLM"},
    **{"hf": "Hugging Face's inference API", "cohere": "Cohere", "ollama": "Ollama"},
}
HTTP_API = """# HTTP API

`bertie serve` has these endpoints. [Serve](../how-to/serve.md) explains bertie's own, and
[Clients](../how-to/clients.md) those of other services. Bodies are JSON, and unknown fields are refused. Every answer has
the headers `X-Request-Id` and `Server-Timing`: the milliseconds of the stages `tokenize`, `queue` and `compute`, and the
`total`.

Each endpoint shows the form of the body (→) and of the answer (←). A field with a question mark may be omitted, or null.
A form that stands before in the same section is not repeated, and a field is explained where it first occurs, with its
default or its values in parentheses. [openapi.json](openapi.json), which the server has at `/openapi.json`, has all
types."""


def http_api(described: Schema) -> str:
    """Every endpoint by dialect, with the fields of its messages."""
    schemas, told = described["components"]["schemas"], set[Row]()
    parts = [HTTP_API]
    for dialect in DIALECTS:
        parts += [f"## {TITLES[dialect.name]}", *section(dialect, described["paths"], schemas, told)]
    statuses = described["paths"]["/v1/embeddings"]["post"]["responses"].items()
    return "\n\n".join(
        [*parts, "## Statuses", entries((code(status), "", it["description"]) for status, it in statuses)]
    )


def section(dialect: Dialect, paths: Schema, schemas: Schema, told: set[Row]) -> Iterator[str]:
    """Yield the endpoints of a dialect and the fields of their messages. told: the fields that earlier sections explain."""
    found: dict[str, tuple[list[str], Schema]] = {}  # with and without the base of the dialect, an endpoint is one
    for route, owner, endpoint in routes():
        if owner is dialect:
            path = route.replace(":path", "")
            operation = paths[path][endpoint.method.lower()]
            parts = [operation.get(key) for key in ("description", "requestBody")], operation["responses"]["200"]
            found.setdefault(json.dumps(parts), ([], operation))[0].append(f"{endpoint.method} {path}")
    lines, shown = [], set[str]()
    explained: dict[str, dict[Row, str]] = {"In requests:": {}, "In answers:": {}}
    for names, operation in found.values():
        line = f"- {codes(names)}: {cell(operation['description'])}"
        bodies = (operation.get("requestBody", {}), operation["responses"]["200"])
        for rows, body, arrow in zip(explained.values(), bodies, "→←", strict=True):
            if schema := body.get("content", {}).get("application/json", {}).get("schema"):
                line += f"<br>{arrow} {code(form(schema, schemas, shown, top=True))}"
                for row in fields(schema, schemas):
                    rows.setdefault(row, names[0])
        lines.append(line)
    error = schemas[dialect.error.__name__]
    explained["In answers:"] |= dict.fromkeys(fields(error, schemas), "errors")
    yield "\n".join([*lines, f"- Errors:<br>← {code(form(error, schemas, set()))}"])
    for head, rows in explained.items():
        new = {row: place for row, place in rows.items() if (row[2] or "," in row[1]) and row not in told}
        same = [name for name, *_ in new]
        if new:
            yield head
            yield entries(
                (f"{row[0]} of {code(place)}" if same.count(row[0]) > 1 else row[0], *row[1:])
                for row, place in new.items()
            )
        told.update(new)


def form(schema: Schema, schemas: Schema, shown: set[str], top: bool = False) -> str:
    """The form of a message, such as `{model?, data: [{index, embedding}]}`. shown: the messages that need no repetition."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in shown and not top:
            return "object"
        shown.add(name)
        return form(schemas[name], schemas, shown)
    if "anyOf" in schema:
        parts = [part for part in schema["anyOf"] if part != {"type": "null"}]
        return " or ".join(dict.fromkeys(form(part, schemas, shown, top) for part in parts))
    if schema.get("type") == "array":
        each = schema.get("prefixItems") or [schema.get("items", {})]
        return f"[{', '.join(form(part, schemas, shown, top) for part in each)}]"
    if "properties" not in schema:
        return schema.get("type", "any")
    parts = []
    for name, field in schema["properties"].items():
        inner = form(field, schemas, shown)
        parts.append(name + "?" * (name not in schema.get("required", ())) + f": {inner}" * ("{" in inner))
    return f"{{{', '.join(parts)}}}"


def fields(schema: Schema, schemas: Schema) -> Iterator[Row]:
    """Yield name, default or values, and meaning of the fields of a message and of the messages in it."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for part in [*schema.get("anyOf", ()), *filter(None, [schema.get("items")])]:
        yield from fields(part, schemas)
    if "\n" in (text := schema.get("description", "")):  # more than a name says
        yield code(f"{{{', '.join(schema['properties'])}}}"), "", cell(text)
    for name, field in schema.get("properties", {}).items():
        kinds = field.get("anyOf", [field])
        meaning = field.get("description") or next((kind["description"] for kind in kinds if "description" in kind), "")
        default = field.get("default")
        values = [value for kind in kinds for value in kind.get("enum", ())]
        values = values or ([] if default in (None, "") else [json.dumps(default).strip('"')])
        yield code(name), codes(values), cell(meaning)
        yield from fields(field, schemas)
