"""Examples in memory: lists, frames of pandas and polars, datasets, tables of pyarrow, arrays and columns, as Python values.

The libraries are not imported: their objects are known by their methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import console
from bertie.base.errors import UsageError

_COLUMNS = {"text", "sentence", "sentence1", "premise", "question", "context", "tokens", "words", "label", "labels"}
_MISSING = ("NAType", "NaTType")  # types of pandas for a missing value


def require_list(values: Any) -> Iterable[Any]:
    """Return examples in memory as Python values, one per example; a generator is read lazily.

    Args:
        values: A list, or another ordered iterable of values; a frame of pandas or polars, a `datasets.Dataset`, a table of
            pyarrow, or a dict of columns, whose rows become dicts; or a column or an array.

    Raises:
        UsageError: It is one example (its characters or keys would be taken for examples), it has no order, or its rows
            cannot be read.
    """
    if isinstance(values, list | tuple):
        return values
    kind = type(values).__name__
    if isinstance(values, set | frozenset):
        raise UsageError(f"a {kind} has no order: give a list")
    if hasattr(values, "collect"):  # before a look at its columns, of which polars warns
        raise UsageError(f"a {kind} has not been computed: give {kind}.collect()")
    if isinstance(values, dict):
        return _rows_of_columns(_columns_of_dict(values), kind)
    if hasattr(values, "features") and hasattr(values, "column_names"):
        return _rows_of_dataset(values)
    if hasattr(values, "columns") and not hasattr(values, "to_pylist"):
        return _rows_of_columns(_columns_of_frame(values), kind)
    if _is_row(values):
        names = ", ".join(values.index[:9])
        raise UsageError(f"a {kind} with the names {names} is one row: give a frame, as frame.iloc[[0]], or a list")
    for method in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, method):
            values = getattr(values, method)()
            break
    if isinstance(values, str | bytes | Path) or not isinstance(values, Iterable):
        raise UsageError(f"expected a list of texts and got one {kind}: put it in brackets")
    return values


def _is_row(series: Any) -> bool:
    """Whether a Series of pandas is a row of a frame: its index has names of columns, or names where its own is a number.

    The index of a column has numbers or ids.
    """
    index: Any = getattr(series, "index", None)
    if not hasattr(index, "name") or not all(isinstance(name, str) for name in index):
        return False
    numbered = not isinstance(getattr(series, "name", None), str | None) and index.name is None and len(index) > 0
    return numbered or any(name.lower() in _COLUMNS for name in index)


def plain(value: Any) -> Any:
    """Return a cell with the numbers, arrays and missing values of NumPy, torch and pandas as values of Python."""
    if type(value) is str:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Decimal):
        return float(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else value


def _columns_of_dict(columns: dict[Any, Any]) -> dict[Any, Any]:
    if columns and all(hasattr(column, "column_names") for column in columns.values()):
        names = ", ".join(map(str, columns))
        raise UsageError(f"a {type(columns).__name__} has several splits ({names}): give one of them")
    if not is_columns(columns):
        raise UsageError("expected a list of texts and got one dict: put it in brackets")
    return columns


def is_columns(values: dict[Any, Any]) -> bool:
    """Whether the values of a dict are columns."""
    return bool(values) and all(_sized(each) and not isinstance(each, str | bytes | dict) for each in values.values())


def _sized(column: Any) -> bool:
    return hasattr(column, "__len__") and hasattr(column, "__iter__")


def _columns_of_frame(frame: Any) -> dict[Any, Any]:
    kind, names = type(frame).__name__, list(frame.columns)
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two columns of the {kind} are named {repeated[0]!r}")
    columns = {name: frame[name] for name in names}
    if not all(hasattr(column, "to_list") for column in columns.values()):
        raise UsageError(f"cannot read the rows of a {kind}: give a list of dicts, or a frame of pandas or polars")
    return columns


def _rows_of_columns(columns: dict[Any, Any], kind: str) -> Iterable[dict[Any, Any]]:
    lists = [column.to_list() if hasattr(column, "to_list") else column for column in columns.values()]
    sizes = {name: len(column) for name, column in zip(columns, lists, strict=True)}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name!r} {size:,}" for name, size in sizes.items())
        raise UsageError(f"the columns of a {kind} must be equally long, but have these numbers of rows: {listed}")
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def _rows_of_dataset(dataset: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `datasets.Dataset`, with the names of its ClassLabels."""
    features = {name: getattr(feature, "feature", feature) for name, feature in (dataset.features or {}).items()}
    named = {name: list(inner.names) for name, inner in features.items() if hasattr(inner, "int2str") and inner.names}
    rows = dataset.with_format(None)
    return (with_names(row, named) for row in rows) if announced(named) else iter(rows)


def parquet_names(path: Path) -> dict[str, list[str]]:
    """Return the names of the numbers in columns of a .parquet file, as `datasets` writes its ClassLabels."""
    from pyarrow import ArrowException, parquet

    try:
        written = (parquet.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
        features = {name: each.get("feature", each) for name, each in json.loads(written)["info"]["features"].items()}
        named = {name: each["names"] for name, each in features.items() if each.get("_type") == "ClassLabel"}
    except (ArrowException, OSError, ValueError, LookupError, AttributeError):
        return {}  # reading the rows says what is wrong
    return announced({name: list(map(str, names)) for name, names in named.items()})


def announced(named: dict[str, list[str]]) -> dict[str, list[str]]:
    """Say and return the names of the numbers in columns."""
    for name, names in named.items():
        console.info_once(f"{name!r}: the dataset names its numbers: {', '.join(names[:30])}")
    return named


def with_names(row: dict[str, Any], named: dict[str, list[str]]) -> dict[str, Any]:
    """Return a row with names instead of the numbers of some columns."""
    return {name: _named(value, named[name]) if name in named else value for name, value in row.items()}


def _named(value: Any, names: list[str]) -> Any:
    """Return the name of a number, or the names of a list. −1 is a missing label there, as in unlabeled test splits."""
    value = plain(value)
    if isinstance(value, list):
        return [_named(item, names) for item in value]
    if not isinstance(value, int) or value == -1:
        return None if value == -1 else value
    return names[value]
