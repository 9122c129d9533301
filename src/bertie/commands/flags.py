"""The arguments of each verb as data, for shell completion and the reference documentation.

`parser` builds the parser from the same dataclasses with tyro. A test compares the two.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Fixed, Positional

from bertie import config
from bertie.commands import USUAL, VERBS

REQUIRED = tyro.MISSING
MARKERS = {"positional": typing.get_args(Positional[str])[1], "fixed": typing.get_args(Fixed[str])[1]}
# Fields that a verb's parser accepts but its help does not list, by dataclass: the verb refuses them with a message.
HIDDEN = {
    "glue": {
        "FinetuneConfig.metric",
        *(f"Classify.{name}" for name in ("text", "text_pair", "label", "labels", "paired")),
        *(f"Regress.{name}" for name in ("text", "text_pair", "label", "paired")),
    }
}
VALUE_NAMES = {Path: "PATH", int: "INT", float: "FLOAT", str: "STR", bool: "{True,False}"}


@dataclass(frozen=True)
class Argument:
    """One argument of a verb."""

    name: str
    """`--training.steps`; for a positional argument, the name of the field."""
    key: str
    """The same in a TOML file: `training.steps`."""
    help: str
    """The docstring of the field, on one line."""
    type: Any
    """The type of the value, without annotations."""
    default: Any
    """The default value, or `REQUIRED`."""
    group: type
    """The dataclass that declares the field."""

    @property
    def positional(self) -> bool:
        return not self.name.startswith("--")

    @property
    def switch(self) -> bool:
        """Whether this is a flag without a value."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the type lists them."""
        return tuple(str(value) for value in literals(self.type))


def variants(verb: str) -> dict[str, list[Argument]]:
    """List the arguments of a verb.

    Returns:
        The arguments by the verb's first word, if they depend on it (a recipe or a kind of task); else under "".
    """
    hidden = HIDDEN.get(verb, set())
    return {
        word: [a for a in arguments if f"{a.group.__name__}.{a.key.rpartition('.')[2]}" not in hidden]
        for word, arguments in _variants(verb).items()
    }


def _variants(verb: str) -> dict[str, list[Argument]]:
    command = importlib.import_module(VERBS[verb])
    hints = typing.get_type_hints(command.Args)
    if "task" in hints:  # the verb reads the kind of its task from a run
        defaults = command.defaults(USUAL[verb][1])
        tasks = {kind: config.build(hints["task"], {"kind": kind}, "task") for kind in kinds(hints["task"])}
        return {kind: list(walk(dataclasses.replace(defaults, task=task))) for kind, task in tasks.items()}
    if verb in USUAL:
        return {name: list(walk(command.defaults(name))) for name in config.shipped(verb)}
    defaults = command.defaults(command.Args.config) if hasattr(command, "defaults") else None
    return {"": list(walk(defaults or command.Args))}


def walk(args: Any, prefix: str = "") -> Iterator[Argument]:
    """Yield every argument of a dataclass and of the dataclasses in it.

    Args:
        args: A dataclass, or an instance of one, whose values are then the defaults.
        prefix: Dotted key of this dataclass, with a dot at its end.
    """
    owner = args if isinstance(args, type) else type(args)
    hints = typing.get_type_hints(owner, include_extras=True)
    docs = field_docs(owner)
    for field in dataclasses.fields(owner):
        hint, extras = unwrap(hints[field.name])
        default = field_default(field) if args is owner else getattr(args, field.name)
        if MARKERS["fixed"] in extras:
            continue
        nested = prefix if any(getattr(extra, "name", None) == "" for extra in extras) else f"{prefix}{field.name}."
        items = default if isinstance(default, tuple) and default else ()
        if dataclasses.is_dataclass(default):
            yield from walk(default, nested)
        elif items and all(map(dataclasses.is_dataclass, items)):
            for number, item in enumerate(items):
                yield from walk(item, f"{nested}{number}.")
        elif not holds_tables(hint) and not (field.name == "kind" and prefix):  # no flag changes a kind
            positional = MARKERS["positional"] in extras
            name = field.name if positional else _flag(prefix, field.name, hint is bool and default is True)
            yield Argument(name, prefix + field.name, docs.get(field.name, ""), hint, default, owner)


def field_docs(owner: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, on one line."""
    return _field_docs(sys.modules[owner.__module__]).get(owner.__name__, {})


@functools.cache
def _field_docs(module: types.ModuleType) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            found[node.name] = {
                field.target.id: " ".join(below.value.value.split())
                for field, below in pairs
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(below.value.value, str)
            }
    return found


def literals(hint: Any) -> list[Any]:
    """Return the values of every Literal in a type."""
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [value for part in typing.get_args(hint) for value in literals(part)]


def kinds(union: Any) -> dict[str, type]:
    """Return the dataclasses of a closed union by their `kind`."""
    members = typing.get_args(union) if typing.get_origin(union) in (Union, types.UnionType) else (union,)
    return {typing.get_args(typing.get_type_hints(member)["kind"])[0]: member for member in members}


def unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type into the type without annotations and its annotations."""
    if typing.get_origin(hint) is Annotated:
        inner, *extras = typing.get_args(hint)
        return inner, tuple(extras)
    return hint, ()


def holds_tables(hint: Any) -> bool:
    """Whether the values are tables of a TOML file. A flag cannot set those."""
    return dataclasses.is_dataclass(hint) or any(map(holds_tables, typing.get_args(hint)))


def field_default(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field, or `REQUIRED`."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def value_name(hint: Any, name: str = "") -> str:
    """Return the placeholder for a value in the help: `INT`, `PATH…`, `{a,b}`.

    Args:
        hint: The type of the value.
        name: Name of a positional argument. It replaces the type.
    """
    origin = typing.get_origin(hint)
    members = [part for part in typing.get_args(hint) if part not in (types.NoneType, ...)]
    if origin is tuple and len(members) > 1:
        return " ".join(map(value_name, members))
    if origin in (list, tuple):
        return f"{value_name(members[0], name)}…"
    if name:
        return name.upper()
    if origin is Literal:
        return f"{{{','.join(map(str, members))}}}"
    return "|".join(map(value_name, members)) if members else VALUE_NAMES[hint]


def _flag(prefix: str, name: str, negated: bool) -> str:
    return f"--{prefix}{'no_' if negated else ''}{name}".replace("_", "-")
