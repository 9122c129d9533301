"""Types, defaults and tables as Markdown, for docs/generate_reference.py."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertie.base.config import REQUIRED

TYPES = {
    dict[str, Any]: "table",
    dict[str, float]: "table of floats",
    int: "integer",
    float: "float",
    str: "string",
    bool: "boolean",
    Path: "path",
}
Row = tuple[str, ...]
"""The cells of a line of a table."""


def prose(owner: Any) -> str:
    """The docstring of a class as Markdown; nothing for the one that `dataclass` makes."""
    text = owner.__doc__ or ""
    return "" if text.startswith(f"{owner.__name__}(") else escape(inspect.cleandoc(text))


def about(hint: Any, value: Any) -> str:
    """What a value may be: the choices, with the default in bold, or the default as a TOML file spells it, or the type."""
    text = str(value).lower() if isinstance(value, bool) else str(list(value) if isinstance(value, tuple) else value)
    if found := choices(hint):
        return ", ".join(f"**{code(choice)}**" if choice == text else code(choice) for choice in found)
    if value is REQUIRED:
        return f"{type_name(hint)}, required"
    return type_name(hint) if value is None or value in ((), [], {}, "") else code(text)


def choices(hint: Any) -> list[Any]:
    """The values among the members of a type that lists them."""
    if typing.get_origin(hint) is typing.Literal:
        return [value for value in typing.get_args(hint) if value]
    return [value for part in typing.get_args(hint) for value in choices(part)]


def type_name(hint: Any) -> str:
    """A type in words, such as array of integer."""
    if typing.get_origin(hint) in (list, tuple):
        return f"array of {type_name(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in typing.get_args(hint) if part is not type(None))
    return "table" if typing.get_origin(hint) is dict else TYPES[hint]


def entries(rows: Iterable[Row]) -> str:
    """A list of names, each with its type and default in parentheses, and what it means."""
    return "\n".join(f"- {name}{f' ({kind})' * bool(kind)}{f': {told}' * bool(told)}" for name, kind, told in rows)


def table(head: Iterable[str], rows: Iterable[Row]) -> str:
    head, rows = tuple(head), list(rows)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def folded(tables: dict[str, list[Row]]) -> tuple[dict[str, list[Row]], list[Row]]:
    """Take the rows that several tables have out of them. Return the tables without these rows, and these rows."""
    places: dict[Row, list[str]] = {}
    for name, rows in tables.items():
        for row in rows:
            places.setdefault(row, []).append(name)
    own = {name: [row for row in rows if len(places[row]) == 1] for name, rows in tables.items()}
    return own, [row for row, names in places.items() if len(names) > 1]


def code(text: Any) -> str:
    return f"`{text}`"


def codes(texts: Iterable[Any]) -> str:
    return ", ".join(map(code, texts))


def cell(text: str) -> str:
    return " ".join(escape(text).split()).replace("|", "\\|")


def escape(text: str) -> str:
    """Text in which Markdown finds no markup but code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts)


def slug(heading: str) -> str:
    """The anchor of a heading, as forges and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def link(text: str, heading: str, page: str = "") -> str:
    return f"[{text}]({page}#{slug(heading)})"
