"""Types, defaults and tables as Markdown, for docs/generate_reference.py."""

from __future__ import annotations

import re
import types
import typing
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


def prose(owner: type) -> str:
    """The docstring of a class as Markdown; nothing for the one that `dataclass` makes."""
    text = owner.__doc__ or ""
    return "" if text.startswith(f"{owner.__name__}(") else escape("\n".join(map(str.strip, text.strip().split("\n"))))


def type_name(hint: Any) -> str:
    """A type in words: choices, array of integer, float or none."""
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(code(str(value)) for value in typing.get_args(hint))
    if typing.get_origin(hint) in (list, tuple):
        return f"array of {type_name(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in typing.get_args(hint) if part is not type(None))
    return "table" if typing.get_origin(hint) is dict else TYPES[hint]


def shown(value: Any) -> str:
    """A default as a TOML file spells it."""
    if value is REQUIRED:
        return "required"
    if value is None or value in ((), [], {}, ""):
        return "none"
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(str(list(value)) if isinstance(value, tuple) else str(value))


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def code(text: str) -> str:
    return f"`{text}`"


def cell(text: str) -> str:
    return escape(text).replace("|", "\\|")


def escape(text: str) -> str:
    """Text in which Markdown finds no markup but code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts)


def slug(heading: str) -> str:
    """The anchor of a heading, as forges and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
