"""Tables and findings, which every analysis returns. The files and the page are made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage

HEAD = {"layer": "layer, from 1", "head": "head in the layer, from 1"}
"""Meaning of the columns `layer` and `head`, in a table with a row for every head."""


TableRow = dict[str, Any]
InputFacts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length, with what they mean."""

    name: str
    """Name of the files: NAME.parquet and NAME.csv."""
    columns: dict[str, Many[Any] | np.ndarray]
    """Column -> values: numbers, strings or None."""
    meaning: dict[str, str]
    """Column -> its meaning, with its unit, in a few words. The page shows it."""

    @classmethod
    def of_rows(cls, name: str, rows: Many[TableRow], meaning: dict[str, str]) -> Table:
        """Return a table with the given rows: column -> value, for every column of `meaning`."""
        return cls(name, {column: [row[column] for row in rows] for column in meaning}, meaning)

    @classmethod
    def join(cls, tables: Many[Table]) -> Table:
        """Return one table with the rows of all, which have the same columns."""
        return cls.of_rows(tables[0].name, [row for table in tables for row in table.rows()], tables[0].meaning)

    def rows(self) -> list[TableRow]:
        """Return the rows, column -> value, as in `plain`."""
        plain = self.plain()
        return [dict(zip(plain, values, strict=True)) for values in zip(*plain.values(), strict=True)]

    def plain(self) -> dict[str, list[Any]]:
        """Return the columns as lists for JSON. NaN and infinity become None."""
        return {name: [_plain(value) for value in values] for name, values in self.columns.items()}


Tables = Mapping[str, Table]
"""Tables by their names."""


def write_tables(folder: Path, tables: Many[Table]) -> None:
    """Write every table as NAME.parquet and NAME.csv."""
    import pyarrow
    from pyarrow import csv, parquet

    for table in tables:
        content = pyarrow.table(table.plain())
        parquet.write_table(content, folder / f"{table.name}.parquet", compression="zstd")
        csv.write_csv(content, folder / f"{table.name}.csv")


def write_numbers(path: Path, about: InputFacts, tables: Many[Table], only_meaning: Many[Table] = ()) -> None:
    """Write inspect.json: `about` (model, inputs, versions), and all tables with the meaning of their columns.

    Args:
        path: The file.
        about: Facts.
        tables: The tables.
        only_meaning: Tables too large for this file, of which it has only the meaning of the columns.
    """
    content: dict[str, Any] = {table.name: {"meaning": table.meaning, "columns": table.plain()} for table in tables}
    content |= {table.name: {"meaning": table.meaning} for table in only_meaning}
    storage.write_atomic(path, json.dumps({**about, "tables": content}, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, eq=False)
class InputFindings:
    """Results of the analyses of one input."""

    name: str
    """Name of the input, such as "text": its key in inspect.json."""
    facts: InputFacts
    """Numbers about the input, such as how many texts were read, for inspect.json."""
    tables: list[Table]
    """The tables."""
    summary: Many[str] = field(default=())
    """Lines for the terminal."""
