"""Read predictions: files of `bertie predict`, GLUE's tables of index and prediction, SQuAD's answers by id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertie.base import storage
from bertie.base.errors import UsageError, UserError, join_names, raise_error
from bertie.examples.in_memory import is_columns, require_list
from bertie.examples.rows import Row, describe_bad_number, parse_index, parse_label_number, read_rows, require_file
from bertie.tasks.predictions import prediction_to_json

_EVALUATE = {"prediction_text": "answer", "no_answer_probability": "null_score"}  # names of bertie for its names
PREDICTION = "prediction"  # the column of predictions in GLUE's tables, whatever the task


def read_predictions(path: Path) -> list[Row | UserError]:
    """Return one row per example, with an error where `bertie predict` wrote one.

    Raises:
        UsageError: if the file does not exist, or is not .json, .jsonl or .tsv.
        UserError: for the first line that cannot be read.
    """
    if path.suffix == ".json":
        require_file(path)
        return given_predictions(storage.parse(path, storage.read_bytes(path, None)), f"{path}: ")
    if path.suffix not in (".jsonl", ".tsv"):
        raise UsageError(f"{path}: predictions are read from .jsonl, .json and .tsv files")
    rows = [raise_error(row).renamed(_EVALUATE) for row in read_rows(path)]
    return _sort_by_index(path, rows) if path.suffix == ".tsv" else [_row_or_error(row) for row in rows]


def given_predictions(values: Any, where: str = "") -> list[Row | UserError]:
    """Return one row per prediction in Python or JSON.

    Args:
        values: The result of `Predictor.predict`, dicts with the same names or those of `evaluate`, a dict of columns, or
            SQuAD's dict of answers by id.
        where: The file, for messages.
    """
    if isinstance(values, dict) and not is_columns(values):
        return [
            Row({"id": name, "answer": answer}, name, f"{where}the answer to {name}") for name, answer in values.items()
        ]
    rows: list[Row | UserError] = []
    for number, value in enumerate(require_list(values), 1):
        place = f"{where}prediction {number}"
        value = prediction_to_json(value) if is_dataclass(value) else value
        if not isinstance(value, dict | UserError):
            raise UserError(f"{place}: expected a dict or a result of predict, got {type(value).__name__}")
        rows.append(_row_or_error(Row(value, place, place).renamed(_EVALUATE)) if isinstance(value, dict) else value)
    return rows


def require_once(names: Iterable[str], where: str) -> None:
    """Raise a UserError if a name is repeated."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where}: {name} occurs twice")
        seen.add(name)


def index_of(text: str, place: str) -> int:
    """Return a text as an integer from 0, or raise a UserError."""
    index = parse_index(text)
    if index is None:
        raise UserError(f"{place}: the index is {text[:20]!r}, but must be a number from 0")
    return index


def answer_of(values: dict[str, Any], name: str, place: str) -> Any:
    """Return the value of a prediction, or raise a UserError.

    Args:
        values: The values of the prediction by column.
        name: The column that `bertie predict` writes; PREDICTION is accepted as well.
        place: The file and line, for error messages.
    """
    answer = values.get(name, values.get(PREDICTION))
    if answer is None:
        raise UserError(f"{place}: {name!r} is missing or null; there are {join_names(map(str, values))}")
    return answer


def require_number(value: Any, place: str) -> float:
    """Return a predicted number, or raise a UserError if it is not finite or is too large to be scored."""
    number = parse_label_number(str(value))
    if number is None:
        raise UserError(f"{place}: the prediction is {describe_bad_number(str(value))}")
    return number


def _row_or_error(row: Row) -> Row | UserError:
    return UserError(f"{row.place}: an error in place of a prediction") if set(row.values) == {"error"} else row


def _sort_by_index(path: Path, rows: list[Row]) -> list[Row | UserError]:
    """Sort the rows of GLUE's table by their index, which counts examples from 0. Raises UserError if one is missing."""
    if set(rows[0].values if rows else ()) != {"index", PREDICTION}:
        columns = ", ".join(rows[0].values) if rows else "none with rows"
        raise UserError(f"{path}: expected the columns index and {PREDICTION}, found {columns}")
    ordered = sorted([(index_of(row.values["index"], row.place), row) for row in rows], key=itemgetter(0))
    require_once((f"index {index}" for index, _ in ordered), str(path))
    for number, (index, _) in enumerate(ordered):
        if index != number:
            raise UserError(f"{path}: index {number} is missing")
    return [row for _, row in ordered]
