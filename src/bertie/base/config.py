"""Convert between TOML and frozen dataclasses, strictly.

An unknown key, a wrong type or a misspelled `kind` is an error that names the key.

A file can extend another file: `extends = "other.toml"` (relative to the file) or `extends = "mini"` (shipped with
bertie). `extends = ["mini", "other.toml"]` merges both, from left to right: the later one overrides. The file then merges
with its parents as follows:

- Tables merge key by key.
- A table with another `kind` than the parent's table replaces it completely, because the keys of one kind have no meaning
  for another.
- An array replaces the parent's array. If its items are tables with a `kind`, each of them merges with the parent's item
  of the same kind.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
import tomllib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from bertie.base import own_code
from bertie.base.errors import MAX_INT32, UsageError, did_you_mean, nearest, require_range

C = TypeVar("C")
UNIONS = (Union, types.UnionType)
TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
REQUIRED = dataclasses.MISSING
NO_FLAG = "no flag"
NoFlag = Annotated[C, NO_FLAG]
"""Type of a field that no flag sets, because the program determines it."""
SHIPPED = Path(__file__).parents[1] / "configs"


def shipped(group: str) -> list[str]:
    """Return the names of the configurations in the package: shipped("pretrain") -> ["base", "base-paper", …]."""
    return sorted(path.stem for path in (SHIPPED / group).glob("*.toml"))


def load(kind: type[C], source: str | Path | dict[str, Any], group: str) -> C:
    """Load a configuration and the configurations that it extends.

    Args:
        kind: Dataclass of the configuration.
        source: TOML file, name of a shipped configuration, or a dict with the contents of such a file.
        group: Folder of the shipped configurations: "pretrain" or "finetune".

    Returns:
        An instance of `kind`.

    Raises:
        UsageError: The file is missing or is not TOML, or a key or value is wrong.
    """
    if isinstance(source, dict):
        return build(kind, _resolve_extends(source, Path(), "the configuration", group, ()), "")
    path = _find(str(source), Path(), group)
    if not path.is_file():
        raise UsageError(_missing(str(source), group))
    values = _resolve_extends(read(path), path.parent, str(path), group, (path.resolve(),))
    try:
        return build(kind, values, "")
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _missing(name: str, group: str) -> str:
    """Return the message for a name or file that does not exist."""
    what, names = "lab" if group == "lab" else "recipe", shipped(group)
    if name.endswith(".toml"):
        return f"no such file: {name}{did_you_mean(Path(name).stem, names)}"
    close = file if Path(file := f"{name}.toml").is_file() else nearest(name, names)
    guess = f"did you mean {close!r}? Or " if close else ""
    return f"no {what} {name!r}: {guess}give a .toml file or one of {', '.join(names)}"


@functools.cache
def hints(owner: type, include_extras: bool = False) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    types_by_name = get_type_hints(owner, include_extras=include_extras)
    return {field.name: types_by_name[field.name] for field in dataclasses.fields(owner)}


def field_docs(owner: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass or message, on one line, or the `Doc` of its type."""
    extras = {name: get_args(hint) for name, hint in get_type_hints(owner, include_extras=True).items()}
    shared = {name: part.text for name, parts in extras.items() for part in parts if isinstance(part, Doc)}
    return shared | _field_docs(sys.modules[owner.__module__]).get(owner.__name__, {})


@functools.cache
def _field_docs(source: types.ModuleType) -> dict[str, dict[str, str]]:
    docs_by_class: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(source)).body:
        if isinstance(node, ast.ClassDef):
            pairs = zip(node.body, node.body[1:], strict=False)
            docs_by_class[node.name] = {
                field.target.id: " ".join(below.value.value.split())
                for field, below in pairs
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(below.value.value, str)
            }
    return docs_by_class


@dataclasses.dataclass(frozen=True)
class Doc:
    """The documentation of all fields of a type, as its annotation: `Seed = Annotated[int, Doc("Random seed.")]`."""

    text: str


@dataclasses.dataclass(frozen=True)
class Range:
    """The allowed values of a field, as its annotation: `Annotated[int, Range(1)]`. Parameters as of `require_range`."""

    low: float
    high: float = MAX_INT32
    above: bool = False
    multiple: int = 0


Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
LayerCount = Annotated[int, Range(1, 1000)]
Size = Annotated[int, Range(1, 1_000_000)]
SizeOrZero = Annotated[int, Range(0, 1_000_000)]
EvenSize = Annotated[int, Range(2, 1_000_000, multiple=2)]
NotNegative = Annotated[float, Range(0)]
AboveZero = Annotated[float, Range(0, above=True)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, above=True)]
DropoutRate = Annotated[float, Range(0, 0.99)]
DropoutRateOrNone = Annotated[float | None, Range(0, 0.99)]


def check_ranges(where: str, config: object) -> None:
    """Raise UsageError if a field of a dataclass is outside of its `Range`. where: dotted key of the dataclass."""
    for name, hint in hints(type(config), include_extras=True).items():
        for limits in get_args(hint):
            if isinstance(limits, Range) and getattr(config, name) is not None:
                require_range(where, config, name, **vars(limits))


def ranges(where: str) -> Callable[[object], None]:
    """Return a `__post_init__` that only checks ranges."""
    return lambda config: check_ranges(where, config)


def defaults(owner: type) -> dict[str, Any]:
    """Return the default of each field of a dataclass, or `REQUIRED`."""
    fields = dataclasses.fields(owner)
    return {f.name: f.default if f.default_factory is REQUIRED else f.default_factory() for f in fields}


def kinds(union: Any) -> dict[str, Any]:
    """Return the dataclasses of a union by their `kind`, without a protocol among them."""
    members = get_args(union) if get_origin(union) in UNIONS else (union,)
    return {get_args(hints(member)["kind"])[0]: member for member in members if dataclasses.is_dataclass(member)}


def build(kind: Any, value: Any, where: str) -> Any:
    """Convert TOML values to a typed value.

    Args:
        kind: Wanted type: a dataclass, a union of dataclasses with a `kind`, a tuple, a dict, a Literal, a scalar type, a
            union of a dict and one of these, or `Any` for values that are checked later. A union with a protocol is open:
            a `kind` may also name a class of the user's own that fulfills it (`own_code`).
        value: TOML values.
        where: Dotted key of the value, for messages; "" for the top level.

    Raises:
        UsageError: The value does not have this type. The message names the key.
    """
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in UNIONS:
        return _build_union(kind, value, where)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise UsageError(f"{where}: expected an array, found {shown(value)}")
        return tuple(build(get_args(kind)[0], item, f"{where}.{i}") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected a table, found {shown(value)}")
        return {key: build(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        return _choose(value, list(get_args(kind)), where)
    if kind is float and type(value) is int and abs(value) < 1 << 1000:
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{where}: expected {TYPE_NAMES[kind]}, found {shown(value)}")
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
        values = {field.name: getattr(config, field.name) for field in shown}
        if own := own_code.name_of(type(config)):
            values["kind"] = own
        return {name: plain(value, defaults) for name, value in values.items() if value is not None}
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


def _find(name: str, folder: Path, group: str) -> Path:
    """Return the path of a file, relative to `folder`, or of the shipped configuration with this name."""
    path = folder / name
    is_file = path.suffix == ".toml" or path.is_file() or name != path.name
    return path if is_file else SHIPPED / group / f"{name}.toml"


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
    names = values.get("extends", [])
    inherited: dict[str, Any] = {}
    for name in names if isinstance(names, list | tuple) else [names]:
        if not isinstance(name, str):
            raise UsageError(f"{where}: extends {shown(name)}: give a file or a name in quotes, or an array of them")
        parent = _find(name, folder, group)
        if not parent.is_file():
            known = ", ".join(shipped(group))
            raise UsageError(f"{where}: extends {name!r}, but there is no file {folder / name}: use one of {known}")
        if parent.resolve() in chain:
            raise UsageError(f"{where}: extends {name!r}, which extends this file in turn: remove one of the two")
        table = _resolve_extends(read(parent), parent.parent, str(parent), group, (*chain, parent.resolve()))
        inherited = merge(inherited, table)
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
        raise UsageError(f"{where}: expected a table, found {shown(value)}")
    fields = defaults(kind)
    for key in value:
        if key not in fields:
            raise UsageError(f"{f'{where}.{key}'.lstrip('.')} is not known; {_hint(str(key), list(fields))}")
    for name, default in fields.items():
        if default is REQUIRED and name not in value:
            raise UsageError(f"{where or 'top level'}: {name} is missing")
    return kind(**{key: build(hints(kind)[key], item, f"{where}.{key}".lstrip(".")) for key, item in value.items()})


def _build_union(union: Any, value: Any, where: str) -> Any:
    choices = [choice for choice in get_args(union) if choice is not types.NoneType]
    if len(choices) == 1:
        return build(choices[0], value, where)
    if not any(map(dataclasses.is_dataclass, choices)):  # a name, or a table of values
        is_table = isinstance(value, dict)
        return build(next(item for item in choices if (get_origin(item) is dict) == is_table), value, where)
    known, protocol = kinds(union), next((item for item in choices if not dataclasses.is_dataclass(item)), None)
    if protocol is not None and hasattr(value, "kind") and not isinstance(value, type):  # an object instead of a table
        own_code.require(type(value), protocol)
        return value
    if not isinstance(value, dict) or "kind" not in value:
        raise UsageError(f"{where}: expected a table with a kind, found {shown(value)}")
    if protocol is not None and own_code.is_name(value["kind"]):
        owner = own_code.find(value["kind"], protocol)
        return build(owner, {name: item for name, item in value.items() if name != "kind"}, where)
    return build(known[_choose(value["kind"], list(known), f"{where}.kind")], value, where)


def _choose(value: Any, choices: list[Any], where: str) -> Any:
    if value in choices:
        return value
    raise UsageError(f"{where}: {shown(value)} is not known; {_hint(str(value), choices)}")


def _hint(word: str, choices: list[Any]) -> str:
    close = nearest(word, choices)
    return f"did you mean {close!r}?" if close else f"choose from {', '.join(map(str, choices))}"


def shown(value: Any) -> str:
    """Return a value as a TOML file spells it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        text = f"{{{', '.join(f'{key} = {shown(item)}' for key, item in value.items())}}}"
    else:
        text = f"[{', '.join(map(shown, value))}]" if isinstance(value, list | tuple) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
