"""TOML ⇄ frozen dataclasses, strictly: an unknown key, a wrong type or a misspelt `kind` is an error that names the key.

A file may say `extends = "other.toml"` (one parent, relative to the file) or `extends = "mini"` (a shipped one).
Tables merge key by key. A table that names another `kind` than the parent's replaces it whole, so that no key of that kind
survives. An array replaces the parent's; where its items are tables with a `kind`, each merges with the parent's of its kind.
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
    """Names of the configurations that come with the package: shipped("pretrain") -> ["base", "base-paper", …]."""
    return sorted(path.stem for path in (SHIPPED / group).glob("*.toml"))


def load(kind: type[C], given: str | Path | dict[str, Any], group: str) -> C:
    """Of a TOML file, of the shipped one of that name in `group`, or of a dict with what such a file says. Errors: UsageError."""
    if isinstance(given, dict):
        return build(kind, _whole(given, Path(), "the configuration", group, ()), "")
    path = _find(Path(given), group)
    if not path.is_file():
        raise UsageError(f"no configuration {str(given)!r}: give a .toml file or one of {', '.join(shipped(group))}")
    values = _whole(read(path), path.parent, str(path), group, (path.resolve(),))
    try:
        return build(kind, values, "")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def build(kind: Any, value: Any, where: str) -> Any:
    """Turn plain TOML values into `kind`. `where` is the dotted key, for messages. Errors: UsageError."""
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


def plain(config: Any) -> Any:
    """A configuration as TOML values: dataclasses to tables, tuples to arrays; what is None is left out."""
    if dataclasses.is_dataclass(config):
        pairs = ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
        return {name: plain(value) for name, value in pairs if value is not None}
    return [plain(item) for item in config] if isinstance(config, tuple) else config


def parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
        raise UsageError(f"{where} is not TOML: {error}") from error


def read(path: Path) -> dict[str, Any]:
    """The values of a TOML file as they stand there. Errors: UsageError."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error


def _find(path: Path, group: str) -> Path:
    """The file, or else the shipped one of that name."""
    return path if path.suffix == ".toml" or path.is_file() else SHIPPED / group / f"{path.name}.toml"


def _whole(values: dict[str, Any], folder: Path, where: str, group: str, chain: tuple[Path, ...]) -> dict[str, Any]:
    """With what it extends. folder: of relative names; chain: the files that have led here."""
    if "extends" not in values:
        return values
    name = values["extends"]
    parent = _find(folder / str(name), group)
    if not isinstance(name, str) or not parent.is_file():
        known = ", ".join(shipped(group))
        raise UsageError(
            f"{where}: extends {name!r}, but there is no file {folder / str(name)}, and shipped are {known}"
        )
    if parent.resolve() in chain:
        raise UsageError(f"{where}: extends {name!r}, which extends this file in turn")
    inherited = _whole(read(parent), parent.parent, str(parent), group, (*chain, parent.resolve()))
    return _merge(inherited, {key: value for key, value in values.items() if key != "extends"})


def _merge(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    return parent | {key: _merged(parent.get(key), value) for key, value in child.items()}


def _merged(parent: Any, child: Any) -> Any:
    if isinstance(child, list) and isinstance(parent, list):
        of_kind = {
            item["kind"]: item for item in parent if isinstance(item, dict) and isinstance(item.get("kind"), str)
        }
        return [_merged(of_kind.get(item.get("kind")) if isinstance(item, dict) else None, item) for item in child]
    if not isinstance(child, dict) or not isinstance(parent, dict):
        return child
    return _merge(parent, child) if child.get("kind", parent.get("kind")) == parent.get("kind") else child


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: expected a table, got {value!r}")
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in value:
        _choose(key, list(fields), f"{where or 'top level'}: key")
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
    close = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(map(str, choices))}"
    raise UsageError(f"{where}: {value!r} is not known; {hint}")
