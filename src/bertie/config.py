"""Convert between TOML and frozen dataclasses, strictly.

An unknown key, a wrong type or a misspelled `kind` is an error that names the key.

A file can extend one other file: `extends = "other.toml"` (relative to the file) or `extends = "mini"` (shipped with
bertie). It merges with its parent as follows:

- Tables merge key by key.
- A table with another `kind` than the parent's table replaces it completely, because the keys of one kind have no meaning
  for another.
- An array replaces the parent's array. If its items are tables with a `kind`, each of them merges with the parent's item
  of the same kind.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from bertie.errors import UsageError

C = TypeVar("C")
SHIPPED = Path(__file__).parent / "configs"


def shipped(group: str) -> list[str]:
    """Return the names of the configurations in the package: shipped("pretrain") -> ["base", "base-paper", …]."""
    return sorted(path.stem for path in (SHIPPED / group).glob("*.toml"))


def load(kind: type[C], given: str | Path | dict[str, Any], group: str) -> C:
    """Load a configuration and the configurations that it extends.

    Args:
        kind: Dataclass of the configuration.
        given: TOML file, name of a shipped configuration, or a dict with the contents of such a file.
        group: Folder of the shipped configurations: "pretrain" or "finetune".

    Returns:
        An instance of `kind`.

    Raises:
        UsageError: The file is missing or is not TOML, or a key or value is wrong.
    """
    if isinstance(given, dict):
        return build(kind, _resolve_extends(given, Path(), "the configuration", group, ()), "")
    path = _find(Path(given), group)
    if not path.is_file():
        raise UsageError(_missing(str(given), group))
    values = _resolve_extends(read(path), path.parent, str(path), group, (path.resolve(),))
    try:
        return build(kind, values, "")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _missing(given: str, group: str) -> str:
    """Return the message for a name or file that does not exist."""
    what, names = "lab" if group == "lab" else "recipe", shipped(group)
    if given.endswith(".toml"):
        name = Path(given).stem
        return f"no such file: {given}" + (f"; the {what} of the package is {name!r}" if name in names else "")
    beside = [file] if Path(file := f"{given}.toml").is_file() else []
    close = beside or difflib.get_close_matches(given, names, n=1)
    guess = f"did you mean {close[0]!r}? Or " if close else ""
    return f"no {what} {given!r}: {guess}give a .toml file or one of {', '.join(names)}"


def build(kind: Any, value: Any, where: str) -> Any:
    """Convert TOML values to a typed value.

    Args:
        kind: Wanted type: a dataclass, a union of dataclasses with a `kind`, a tuple, a dict, a Literal, a scalar type, or
            `Any` for values that are checked later.
        value: TOML values.
        where: Dotted key of the value, for messages; "" for the top level.

    Raises:
        UsageError: The value does not have this type. The message names the key.
    """
    if kind is Any:
        return value
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _build_union([choice for choice in typing.get_args(kind) if choice is not type(None)], value, where)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected an array, got {value!r}")
        return tuple(build(typing.get_args(kind)[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a table, got {value!r}")
        return {key: build(typing.get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        return _choose(value, list(typing.get_args(kind)), where)
    if kind is float and type(value) is int and abs(value) < 1 << 1000:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def plain(config: Any, defaults: bool = True) -> Any:
    """Convert a configuration to TOML values: dataclasses to tables, tuples to arrays. Fields with None are omitted.

    Args:
        config: The configuration.
        defaults: Whether to include fields that have their default value. `kind` is always included.
    """
    if dataclasses.is_dataclass(config):
        fields = dataclasses.fields(config)
        shown = [f for f in fields if defaults or f.name == "kind" or getattr(config, f.name) != f.default]
        pairs = ((field.name, getattr(config, field.name)) for field in shown)
        return {name: plain(value, defaults) for name, value in pairs if value is not None}
    return [plain(item, defaults) for item in config] if isinstance(config, tuple) else config


def parse(text: str, where: str) -> dict[str, Any]:
    """Parse TOML text. Raises UsageError, which names `where`, if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with thousands of digits
        raise UsageError(f"{where} is not TOML: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """Parse a TOML file, without following `extends`. Raises UsageError if it cannot be read or is not TOML."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def _find(path: Path, group: str) -> Path:
    """Return the path itself, or the path of the shipped configuration with this name."""
    return path if path.suffix == ".toml" or path.is_file() else SHIPPED / group / f"{path.name}.toml"


def _resolve_extends(
    values: dict[str, Any], folder: Path, where: str, group: str, chain: tuple[Path, ...]
) -> dict[str, Any]:
    """Merge values with the configuration that they extend.

    Args:
        values: Contents of a file.
        folder: Folder to which relative names refer.
        where: Name of the file, for messages.
        group: Folder of the shipped configurations.
        chain: Files that were read before, each extending the next, to detect a cycle.
    """
    if "extends" not in values:
        return values
    name = values["extends"]
    parent = _find(folder / str(name), group)
    if not isinstance(name, str) or not parent.is_file():
        known = ", ".join(shipped(group))
        raise UsageError(
            f"{where}: extends {name!r}, but there is no file {folder / str(name)}: give a .toml file or one of {known}"
        )
    if parent.resolve() in chain:
        raise UsageError(f"{where}: extends {name!r}, which extends this file in turn: remove one of the two")
    inherited = _resolve_extends(read(parent), parent.parent, str(parent), group, (*chain, parent.resolve()))
    return merge(inherited, {key: value for key, value in values.items() if key != "extends"})


def merge(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """Merge a table into the table that it extends. See the rules at the top of this file."""
    return parent | {key: _merge_value(parent.get(key), value) for key, value in child.items()}


def _merge_value(parent: Any, child: Any) -> Any:
    if isinstance(child, list) and isinstance(parent, list):
        by_kind = {kind: item for item in parent if (kind := _kind_of(item))}
        return [_merge_value(by_kind.get(_kind_of(item)), item) for item in child]
    if not isinstance(child, dict) or not isinstance(parent, dict):
        return child
    return merge(parent, child) if child.get("kind", parent.get("kind")) == parent.get("kind") else child


def _kind_of(item: Any) -> str:
    """Return the kind of a table; empty for a table without one, and for other values."""
    kind = item.get("kind") if isinstance(item, dict) else None
    return kind if isinstance(kind, str) else ""


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table, got {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in value:
        if key not in fields:
            raise UsageError(f"{f'{where}.{key}'.lstrip('.')} is not known; {_hint(str(key), list(fields))}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise UsageError(f"{where or 'top level'}: {name} is missing")
    return kind(**{key: build(hints[key], item, f"{where}.{key}".lstrip(".")) for key, item in value.items()})


def _build_union(choices: list[Any], value: Any, where: str) -> Any:
    if len(choices) == 1:
        return build(choices[0], value, where)
    if not isinstance(value, dict) or "kind" not in value:
        raise UsageError(f"{where}: expected a table with a kind, got {value!r}")
    kinds = {typing.get_args(typing.get_type_hints(choice)["kind"])[0]: choice for choice in choices}
    return build(kinds[_choose(value["kind"], list(kinds), f"{where}.kind")], value, where)


def _choose(value: Any, choices: list[Any], where: str) -> Any:
    if value in choices:
        return value
    raise UsageError(f"{where}: {value!r} is not known; {_hint(str(value), choices)}")


def _hint(given: str, choices: list[Any]) -> str:
    close = difflib.get_close_matches(given, [str(choice) for choice in choices], n=1)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(map(str, choices))}"
