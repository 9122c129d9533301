"""Predictions back from files: what `bertie predict` wrote, GLUE's table of index and prediction, SQuAD's answers by id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import is_dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    Row,
    describe_bad_number,
    join_names,
    lines,
    parse_index,
    parse_label_number,
    require_file,
    require_list,
    rows,
)
from bertie.tasks.predictions import prediction_to_json

PREDICTION = "prediction"  # what GLUE's tables call it, whatever the task


def read_predictions(path: Path) -> list[Row | UserError]:
    """One an example; an error where `bertie predict` said one. Errors, raised: UsageError, UserError for the first bad line."""
    if path.suffix == ".json":
        return [Row({"id": name, "answer": answer}, path.name, f"{path}: {name}") for name, answer in by_id(path)]
    if path.suffix not in (".jsonl", ".tsv"):
        raise UsageError(f"{path}: predictions are read from .jsonl and .tsv files, for questions also .json")
    found = []
    for row in rows(path):
        if isinstance(row, UserError):
            raise row
        found.append(row)
    return _in_order(path, found) if path.suffix == ".tsv" else [_or_error(row) for row in found]


def given_predictions(values: Any) -> list[Row | UserError]:
    """From Python values: what `Predictor.predict` gives, dicts of the same names, or SQuAD's dict of answers by id."""
    if isinstance(values, dict):
        return [Row({"id": name, "answer": answer}, name, f"the answer to {name}") for name, answer in values.items()]
    found: list[Row | UserError] = []
    for number, value in enumerate(require_list(values), 1):
        place = f"prediction {number}"
        value = prediction_to_json(value) if is_dataclass(value) else value
        if not isinstance(value, dict | UserError):
            raise UserError(f"{place}: expected a dict or what predict gives, got {type(value).__name__}")
        found.append(_or_error(Row(value, place, place)) if isinstance(value, dict) else value)
    return found


def by_id(path: Path) -> list[tuple[str, Any]]:
    """The pairs of a JSON object, in its order. Errors: UserError where it is none, or names an id twice."""
    require_file(path)
    try:
        pairs = json.loads("".join(lines(path)), object_pairs_hook=list)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple) for pair in pairs):
        raise UserError(f'{path}: expected one JSON object with ids as keys, as in {{"id": …}}')
    require_once((name for name, _ in pairs), str(path))
    return pairs


def require_once(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"{where}: {name} is there twice")
        seen.add(name)


def index_of(said: str, place: str) -> int:
    """Errors: UserError for what is no number from 0."""
    index = parse_index(said)
    if index is None:
        raise UserError(f"{place}: the index is {said[:20]!r}, and must be a number from 0")
    return index


def answer_of(values: dict[str, Any], name: str, place: str) -> Any:
    """What a prediction says under `name`, or in a table of GLUE's. Errors: UserError."""
    found = values.get(name, values.get(PREDICTION))
    if found is None:
        null = [each for each in (name, PREDICTION) if each in values]
        told = (
            f"{null[0]!r} is null, and no prediction"
            if null
            else f"no {name!r}; there are {join_names(map(str, values))}"
        )
        raise UserError(f"{place}: {told}")
    return found


def require_number(value: Any, place: str) -> float:
    """A predicted number. Errors: UserError for what is none, or too large to be scored."""
    number = parse_label_number(str(value))
    if number is None:
        raise UserError(f"{place}: the prediction is {describe_bad_number(str(value))}")
    return number


def _or_error(row: Row) -> Row | UserError:
    return UserError(f"{row.place}: an error in place of a prediction") if set(row.values) == {"error"} else row


def _in_order(path: Path, found: list[Row]) -> list[Row | UserError]:
    """The rows of GLUE's table by their index, which counts examples from 0."""
    if set(found[0].values if found else ()) != {"index", PREDICTION}:
        columns = ", ".join(found[0].values) if found else "none with rows"
        raise UserError(f"{path}: expected the columns index and {PREDICTION}, found {columns}")
    ordered = sorted([(index_of(row.values["index"], row.place), row) for row in found], key=itemgetter(0))
    require_once((f"index {index}" for index, _ in ordered), str(path))
    for number, (index, _) in enumerate(ordered):
        if index != number:
            raise UserError(f"{path}: index {number} is missing")
    return [row for _, row in ordered]
