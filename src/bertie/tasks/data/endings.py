"""The endings of multiple choice, in columns with numbers or letters (ending0 …, choice1 …, answerA …), or in one list."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from bertie.errors import UsageError, UserError, join_names, shorten
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.rows import named_columns, require_string

_LISTS = ("endings", "choices", "options")
_NUMBERED = re.compile(r"(ending|choice|answer|option|alternative|sol)_?(\d+|[a-h])", re.IGNORECASE)


def ending_columns(names: list[str], usage_error: Callable[[str, str], UsageError]) -> list[str]:
    """Return the columns of the endings: one with a list, or those with the same name and a number or a letter."""
    groups: dict[str, list[tuple[int, str]]] = {name: [(0, name)] for name in named_columns(names, _LISTS)}
    for name in names:
        if found := _NUMBERED.fullmatch(name):
            word, number = found[1].lower(), found[2].lower()
            place = int(number) if number.isdecimal() else ord(number) - ord("a")
            groups.setdefault(word + "0" * number.isdecimal(), []).append((place, name))
    if len(groups) != 1:
        problem = (
            f"{join_names(groups)} could all be the endings"
            if groups
            else ("no endings to choose among, in columns ending0, ending1 … or a list")
        )
        raise usage_error(problem, "--task.endings")
    [columns] = map(sorted, groups.values())
    if [at for at, _ in columns] != list(range(columns[0][0], columns[0][0] + len(columns))):
        raise usage_error(f"one of the endings {join_names(name for _, name in columns)} is missing", "--task.endings")
    return [name for _, name in columns]


def endings_of(values: dict[str, Any], columns: Sequence[str], place: str) -> tuple[tuple[str, ...], Sequence[str]]:
    """Return the endings, and the names by which labels call them: their letters, or their columns."""
    first = columns[0]
    given, names = values[first], list[str]()
    if len(columns) > 1 or _NUMBERED.fullmatch(first):
        given, names = [values[name] for name in columns], list(columns)
        while given and (given[-1] in (None, "") or given[-1] != given[-1]):  # some questions have fewer endings
            given.pop()
    else:
        given = parse_cell(given, first, place) if is_written(given) else given
        if isinstance(given, dict):
            given, names = _choices_of(given, first, place)
        elif isinstance(given, list) and given and all(isinstance(each, dict) for each in given):
            together = {key: [each.get(key) for each in given] for key in ("text", "label")}
            given, names = _choices_of(together, first, place)
    if not isinstance(given, list):
        raise UserError(f"{place}: the endings must be a list of strings, found {shorten(str(given))!r}")
    if len(given) < 2:
        raise UserError(f"{place}: {len(given)} endings to choose among, and at least 2 are needed")
    labels = columns if len(columns) > 1 else [first] * len(given)
    return tuple(require_string(each, name, place) for each, name in zip(given, labels, strict=False)), names


def _choices_of(given: dict[str, Any], name: str, place: str) -> tuple[list[Any], list[str]]:
    """Return the endings and their letters of {"text": […], "label": […]}, or of {"A": …, "B": …}."""
    texts, letters = (given.get("text"), given.get("label")) if "text" in given else ([*given.values()], [*given])
    if not isinstance(texts, list) or not isinstance(letters, list) or len(texts) != len(letters):
        raise UserError(f'{place}: {name!r} must have two lists of the same length, "text" and "label"')
    return texts, [str(letter).strip().removesuffix(".0") for letter in letters]
