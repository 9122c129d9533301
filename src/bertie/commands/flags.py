"""The arguments of each verb as data: shell completion and the reference documentation are made from them.

`tyro` makes the parser from the same dataclasses. A test compares the two.
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
from typing import Annotated, Any, Literal, Union

import tyro
from tyro.conf import Fixed, Positional

from bertie import config
from bertie.commands import USUAL, VERBS

REQUIRED = tyro.MISSING
MARKERS = {"positional": typing.get_args(Positional[str])[1], "fixed": typing.get_args(Fixed[str])[1]}


@dataclass(frozen=True)
class Argument:
    """One argument of a verb.

    name: `--training.steps`, or the field's name if it is positional. key: the same as a TOML file spells it.
    default: the value, or REQUIRED. group: the dataclass that declares it.
    """

    name: str
    key: str
    help: str
    type: Any
    default: Any
    group: type

    @property
    def positional(self) -> bool:
        return not self.name.startswith("--")

    @property
    def switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.type is bool

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the type lists them."""
        return tuple(str(value) for value in literals(self.type))


def variants(verb: str) -> dict[str, list[Argument]]:
    """The arguments of a verb, by its first word if they depend on that (a recipe or a kind of task), else by ""."""
    command = importlib.import_module(VERBS[verb])
    hints = typing.get_type_hints(command.Args)
    if "task" in hints:  # the verb reads the kind of its task from a run
        usual = command.defaults(USUAL[verb][1])
        tasks = {kind: config.build(hints["task"], {"kind": kind}, "task") for kind in kinds(hints["task"])}
        return {kind: list(walk(dataclasses.replace(usual, task=task))) for kind, task in tasks.items()}
    if verb in USUAL:
        return {name: list(walk(command.defaults(name))) for name in config.shipped(verb)}
    usual = command.defaults(command.Args.config) if hasattr(command, "defaults") else None
    return {"": list(walk(usual or command.Args))}


def walk(given: Any, prefix: str = "") -> Iterator[Argument]:
    """Every argument of a dataclass, or of an instance with its own defaults. prefix: the dotted key before it."""
    owner = given if isinstance(given, type) else type(given)
    hints = typing.get_type_hints(owner, include_extras=True)
    described = field_docs(owner)
    for field in dataclasses.fields(owner):
        hint, extras = _bare(hints[field.name])
        default = _default(field) if given is owner else getattr(given, field.name)
        if MARKERS["fixed"] in extras:
            continue
        nested = prefix if any(getattr(extra, "name", None) == "" for extra in extras) else f"{prefix}{field.name}."
        items = default if isinstance(default, tuple) and default else ()
        if dataclasses.is_dataclass(default):
            yield from walk(default, nested)
        elif items and all(map(dataclasses.is_dataclass, items)):
            for number, item in enumerate(items):
                yield from walk(item, f"{nested}{number}.")
        elif not _holds_tables(hint) and not (field.name == "kind" and prefix):  # no flag changes a kind
            positional = MARKERS["positional"] in extras
            name = field.name if positional else _flag(prefix, field.name, hint is bool and default is True)
            yield Argument(name, prefix + field.name, described.get(field.name, ""), hint, default, owner)


def field_docs(owner: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, on one line."""
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
    """The values of every Literal in a type."""
    if typing.get_origin(hint) is Literal:
        return list(typing.get_args(hint))
    return [value for part in typing.get_args(hint) for value in literals(part)]


def kinds(union: Any) -> dict[str, type]:
    """The dataclasses of a closed union by their `kind`."""
    members = typing.get_args(union) if typing.get_origin(union) in (Union, types.UnionType) else (union,)
    return {typing.get_args(typing.get_type_hints(member)["kind"])[0]: member for member in members}


def _bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its annotations, and those."""
    if typing.get_origin(hint) is Annotated:
        inner, *extras = typing.get_args(hint)
        return inner, tuple(extras)
    return hint, ()


def _holds_tables(hint: Any) -> bool:
    """Whether values are tables of a TOML file, which flags cannot add."""
    return dataclasses.is_dataclass(hint) or any(map(_holds_tables, typing.get_args(hint)))


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return REQUIRED if field.default_factory is dataclasses.MISSING else field.default_factory()


def _flag(prefix: str, name: str, negated: bool) -> str:
    return f"--{prefix}{'no_' if negated else ''}{name}".replace("_", "-")
