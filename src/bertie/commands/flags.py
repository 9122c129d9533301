"""The arguments of each verb, derived from the fields of its `Args` and of the dataclasses in it.

`parser` parses them and prints the help, `completion` writes scripts for shells, docs/generate_reference.py the reference.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from bertie.base import config
from bertie.base.config import NO_FLAG, field_docs
from bertie.commands import READ_MODELS, USUAL, module

T = TypeVar("T")
Positional = Annotated[T, "positional"]  # an argument without a flag
Flat = Annotated[T, "flat"]  # a group of flags without a prefix
JsonResult = dict[str, Any]
"""The result of a verb, which `--json` prints."""
VALUE_NAMES = {Path: "PATH", int: "INT", float: "FLOAT", str: "STR"}


@dataclass(frozen=True)
class Output:
    """Flags that every verb has."""

    json: bool = False
    """Print the result, or the error, as one JSON object on the last line of stdout."""
    debug: bool = False
    """Show the traceback if the command fails."""


@dataclass(frozen=True)
class Reading:
    """Flags that every verb has that takes a model."""

    allow_unused: bool = False
    """Ignore weights without a place in the model, such as an adapter's, instead of refusing them."""
    allow_code: bool = False
    """Import the code that the folder of a model names, such as its task. Only for folders that you trust."""


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
    """The type of the value, without annotations and without None."""
    default: Any
    """The default value, or `REQUIRED`."""
    group: type
    """The dataclass that declares the field."""
    path: tuple[str | int, ...]
    """The attributes and indices that lead to the field from `Args`."""
    optional: bool
    """Whether the value can be None."""

    @property
    def positional(self) -> bool:
        return not self.name.startswith("--")

    @property
    def switch(self) -> bool:
        """Whether this is a flag without a value."""
        return self.type is bool

    @property
    def meaning(self) -> str:
        """The help: for a flag that turns something off, what it turns off."""
        return f"Don't {self.help[0].lower()}{self.help[1:]}" if self.switch and self.default is True else self.help

    @property
    def several(self) -> bool:
        """Whether this argument takes any number of values."""
        return get_origin(self.type) in (list, tuple)

    @property
    def table(self) -> bool:
        """Whether the value may be a table, as TOML spells it: '{a = 2, b = 1}'."""
        return any(get_origin(part) is dict for part in get_args(self.type))

    @property
    def item(self) -> Any:
        """The type of one value."""
        return get_args(self.type)[0] if self.several else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if the type lists them."""
        return get_args(self.item) if get_origin(self.item) is Literal else ()

    @property
    def label(self) -> str:
        """The argument with its value, as in the usage line: `RUN`, `[TEXT…]`, `--training.steps INT`."""
        if self.positional:
            return f"[{self.name.upper()}…]" if self.several else self.name.upper()
        listed = f"{{{','.join(self.choices)}}}" if len(str(self.choices)) < 60 else "CHOICE"
        value = listed if self.choices else "STR" if self.table else VALUE_NAMES.get(self.item, "")
        return f"{self.name} {value}{'…' * self.several}".rstrip()


def arguments(verb: str, overrides: dict[str, Any]) -> list[Argument]:
    """List all arguments of a verb. overrides: the defaults that depend on its first word."""
    owner = importlib.import_module(module(verb)).Args
    shared = (Reading, Output) if verb in READ_MODELS else (Output,)
    more = [argument for group in shared for argument in _walk(group, config.defaults(group))]
    return [*_walk(owner, config.defaults(owner) | overrides), *more]


def listed(verb: str, overrides: dict[str, Any]) -> list[Argument]:
    """List the arguments of a verb without those that it accepts only to refuse them with a message."""
    hidden = getattr(importlib.import_module(module(verb)), "HIDDEN", ())
    return [
        argument
        for argument in arguments(verb, overrides)
        if not is_kind(argument) and f"{argument.group.__name__}.{argument.path[-1]}" not in hidden
    ]


def is_kind(argument: Argument) -> bool:
    """Return whether this is the kind of a table, which only a TOML file can change."""
    return len(argument.path) > 1 and argument.path[-1] == "kind"


def variants(verb: str) -> dict[str, list[Argument]]:
    """List the arguments of a verb.

    Returns:
        The arguments by the verb's first word, if they depend on it (a recipe or a kind of task); else under "". The word
        in `USUAL` is the first one.
    """
    command = importlib.import_module(module(verb))
    usual = USUAL.get(verb)
    if "task" in (hints := config.hints(command.Args)):  # evaluate and predict read the kind of the task from a run
        return {kind: listed(verb, {"task": task()}) for kind, task in config.kinds(hints["task"]).items()}
    if usual and usual.name:
        names = dict.fromkeys([usual.word, *config.shipped(verb)])
        return {name: listed(verb, command.defaults(name)) for name in names}
    return {"": listed(verb, command.defaults(usual.word) if usual else {})}


def tables(every: dict[str, list[Argument]]) -> dict[tuple[str, type], tuple[str, list[Argument]]]:
    """Group dotted flags by the key and the dataclass of their table.

    Args:
        every: The arguments by the first word, as from `variants`.

    Returns:
        For each table, the first word that has it, and the flags with the defaults of this word.
    """
    groups: dict[tuple[str, type], tuple[str, list[Argument]]] = {}
    for word, listing in every.items():
        for argument in listing:
            if "." in argument.key:
                first, members = groups.setdefault((argument.key.rpartition(".")[0], argument.group), (word, []))
                members += [argument] if word == first else []
    return groups


def kind_of(owner: type) -> str:
    """Return " of kind `adamw`" for a dataclass with a kind, else nothing."""
    return f" of kind `{owner.kind}`" if hasattr(owner, "kind") else ""


def _walk(
    owner: type, values: dict[str, Any], prefix: str = "", path: tuple[str | int, ...] = ()
) -> Iterator[Argument]:
    """Yield every argument of a dataclass and of the dataclasses in it.

    Args:
        owner: The dataclass.
        values: The values of its fields, which are the defaults.
        prefix: Dotted key of the dataclass, with a dot at its end.
        path: The attributes that lead to it.
    """
    docs = field_docs(owner)
    for name, annotated in config.hints(owner, include_extras=True).items():
        hint, *extras = get_args(annotated) if get_origin(annotated) is Annotated else (annotated,)
        default, here = values[name], (*path, name)
        if NO_FLAG in extras:
            continue
        if is_dataclass(default):
            yield from _walk(type(default), vars(default), prefix if "flat" in extras else f"{prefix}{name}.", here)
        elif isinstance(default, tuple) and default and is_dataclass(default[0]):
            for number, item in enumerate(default):
                yield from _walk(type(item), vars(item), f"{prefix}{name}.{number}.", (*here, number))
        elif not _holds_tables(hint):
            optional = types.NoneType in get_args(hint)
            bare = next(part for part in get_args(hint) if part is not types.NoneType) if optional else hint
            negation = "no_" if bare is bool and default is True else ""
            flag = name if "positional" in extras else f"--{prefix}{negation}{name}".replace("_", "-")
            yield Argument(flag, prefix + name, docs.get(name, ""), bare, default, owner, here, optional)


def _holds_tables(hint: Any) -> bool:
    """Return whether the values are tables of a TOML file. A flag cannot set those."""
    return is_dataclass(hint) or any(map(_holds_tables, get_args(hint)))
