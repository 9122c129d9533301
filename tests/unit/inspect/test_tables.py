"""Tables and their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from pyarrow import csv, parquet

from bertie.inspect.tables import Table, write_numbers, write_tables

TABLE = Table(
    "heads",
    {"head": np.arange(1, 4), "entropy": np.array([0.5, np.nan, 1.5], np.float32), "name": ["a", 'b "c"', None]},
    {"head": "number of the head", "entropy": "mean entropy, in nats", "name": "its name"},
)


def test_files_hold_the_numbers(tmp_path: Path) -> None:
    write_tables(tmp_path, [TABLE])
    write_numbers(tmp_path / "inspect.json", {"model": "m"}, [TABLE])
    expected = {"head": [1, 2, 3], "entropy": [0.5, None, 1.5], "name": ["a", 'b "c"', None]}
    assert parquet.read_table(tmp_path / "heads.parquet").to_pydict() == expected
    assert csv.read_csv(tmp_path / "heads.csv").to_pydict() == {**expected, "name": ["a", 'b "c"', ""]}
    content = json.loads((tmp_path / "inspect.json").read_text())
    assert content == {"model": "m", "tables": {"heads": {"meaning": TABLE.meaning, "columns": expected}}}
