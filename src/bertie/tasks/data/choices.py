"""Examples with a context and several endings, one of them correct: SWAG's .csv, CODAH's .tsv, similar tables, .jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    Row,
    convert_rows,
    join_names,
    label_or_none,
    may_differ,
    parse_index,
    parse_label,
    read_rows,
    require_distinct_columns,
    require_list,
    require_string,
    row_from_python,
    shorten,
)

_CONTEXTS = ("startphrase", "context", "question", "premise", "text", "prompt")
_LABELS = ("label", "answer", "gold")
_NUMBERED = re.compile(r"ending\d+", re.IGNORECASE)
_CODAH = ["category", "context", "ending0", "ending1", "ending2", "ending3", "label"]


@dataclass(frozen=True)
class ChoiceExample:
    """One context with its endings.

    Attributes:
        context: The text before the endings.
        lead: The text with which each ending begins (SWAG's sent2); "" if there is none.
        endings: The endings.
        label: The index of the correct ending; None if it is unknown.
        source: The file and line, for messages.
    """

    context: str
    lead: str
    endings: tuple[str, ...]
    label: int | None
    source: str


@dataclass(frozen=True)
class ChoiceReader:
    """Reads examples. Endings are the columns ending0, ending1 …, or the strings of a list "endings" or "choices"."""

    context: str = ""
    """Column of the context (empty: found from the header)."""
    label: str = ""
    """Column of the correct ending: its index, from 0, or the name of its column (empty: found from the header)."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or one column with a list (empty: ending0, ending1 …, endings or choices)."""

    def __post_init__(self) -> None:
        for ending in self.endings or ("",):
            require_distinct_columns(context=self.context, label=self.label, endings=ending)
        if len(set(self.endings)) < len(self.endings):
            raise UsageError(f"task.endings names a column twice: {join_names(self.endings)}")
        if numbers := [name for name in self.endings if name.isdecimal()]:
            problem = f"task.endings: a label {numbers[0]} could be the column of this name or the ending of this index"
            raise UsageError(f"{problem}: rename the columns")

    def read(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        """Read examples with labels, for training and evaluation.

        Raises:
            UsageError: if the file does not exist, or its columns are unclear.
            UserError: at the end, if the labels count from 1.
        """
        labels: set[str] = set()
        most_endings = 0
        rows = self._collect_labels(self._rows(path, labeled=True), labels)
        for example in self._examples(path, rows, labeled=True):
            most_endings = max(most_endings, len(example.endings) if isinstance(example, ChoiceExample) else 0)
            yield example
        if str(most_endings) in labels and "0" not in labels:
            expected = f"must be from 0 to {most_endings - 1}"
            raise UserError(f"{path}: the correct endings are numbered from 1 to {most_endings}, and {expected}")

    def stream(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        """Read examples for prediction: labels may be missing or wrong, and are then None."""
        return self._examples(path, self._rows(path, labeled=False), labeled=False)

    def values(self, given: Iterable[Any]) -> Iterator[ChoiceExample]:
        """Convert values to examples.

        Args:
            given: Dicts ({"context": …, "endings": […], "label": 2}), lists of a context and its endings, or
                `ChoiceExample`s.

        Raises:
            UserError: A value is none of these.
        """
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            if isinstance(value, dict):
                value = self._to_example(row_from_python(value, place), strict_label=True, label_column=False)
            elif isinstance(value, list | tuple):
                value = _from_list(value, place)
            elif not isinstance(value, ChoiceExample):
                expected = 'a context needs endings: give [context, ending, ending …] or {"context": …, "endings": […]}'
                remedy = "On the command line: --one-example CONTEXT ENDING ENDING…, or --input FILE"
                raise UserError(f"{place}: {expected}", remedy)
            yield value

    def _rows(self, path: Path, labeled: bool) -> Iterator[Row | UserError]:
        return read_rows(path, _codah_columns, lambda row: self._find_layout(row, labeled))

    def _examples(
        self, path: Path, rows: Iterator[Row | UserError], labeled: bool
    ) -> Iterator[ChoiceExample | UserError]:
        def convert(row: Row) -> ChoiceExample | UserError:
            example = self._to_example(row, strict_label=labeled, label_column=labeled)
            return UserError(f"{row.place}: no label") if labeled and example.label is None else example

        return convert_rows(rows, convert, same_columns=not may_differ(path))

    def _collect_labels(self, rows: Iterator[Row | UserError], labels: set[str]) -> Iterator[Row | UserError]:
        """Yield the same rows and add their labels to `labels`."""
        for row in rows:
            if isinstance(row, Row):
                with suppress(UsageError):  # it is raised, or returned for this row, when the example is made
                    column = self._find_layout(row, labeled=True).label
                    labels.add(str(row.values.get(column) if column else None).strip())
            yield row

    def _find_layout(self, row: Row, labeled: bool) -> _Layout:
        """Find the columns of a row. Raises a UsageError that lists the columns and names the flag to choose with."""
        values, known = row.values, {name.lower(): name for name in row.values if name}

        def usage_error(problem: str, flags: str) -> UsageError:
            return UsageError(f"{row.place}: {problem}; its columns are: {join_names(values)}", f"Choose with {flags}")

        context = self.context or next((known[name] for name in _CONTEXTS if name in known), "")
        if not context or context not in values:
            problem = f"no column {context!r}" if context else "cannot tell which column is the context"
            raise usage_error(problem, "--task.context")
        used, lead = {context}, None
        if context == known.get("startphrase") and "sent1" in known and "sent2" in known:  # SWAG splits it in two
            used, lead = {context, known["sent1"], known["sent2"]}, known["sent2"]
            context = known["sent1"]
        endings = self.endings or _ending_columns(known)
        if not endings or any(name not in values for name in endings):
            missing = "no endings to choose among, in columns ending0, ending1 … or a list"
            raise usage_error(f"no columns {join_names(endings)}" if endings else missing, "--task.endings")
        if repeated := [name for name in endings if name in used]:
            flags = "--task.context and --task.endings"
            raise usage_error(f"{repeated[0]!r} is the context, and cannot be an ending", flags)
        named = self.label
        labels = [named] if named else [known[name] for name in _LABELS if name in known]
        free = [name for name in labels if name not in used and name not in endings]
        if labels and not free and (named or labeled):
            use = "is the context" if labels[0] in used else "holds endings"
            flags = "--task.context, --task.endings and --task.label"
            raise usage_error(f"{labels[0]!r} {use}, and cannot be the label", flags)
        return _Layout(context, lead, endings, free[0] if free else None)

    def _to_example(self, row: Row, strict_label: bool, label_column: bool) -> ChoiceExample:
        """strict_label: whether a bad label is an error. label_column: whether there must be a column for labels."""
        values, source, place = row
        layout = self._find_layout(row, label_column)
        lead = require_string(values[layout.lead], "sent2", place) if layout.lead else ""
        endings = _endings_of(values, layout.endings, place)
        label = label_or_none(lambda: _label_of(values, layout, len(endings), place), strict_label)
        context = require_string(values[layout.context], layout.context, place)
        return ChoiceExample(context, lead, endings, label, source)


class _Layout(NamedTuple):
    """The columns of the context, of the beginning of each ending, of the endings, and of the label."""

    context: str
    lead: str | None
    endings: Sequence[str]
    label: str | None


def _from_list(value: Sequence[Any], place: str) -> ChoiceExample:
    """Convert a context and its endings."""
    texts = [require_string(text, f"text {number}", place) for number, text in enumerate(value, 1)]
    if len(texts) < 3:
        raise UserError(f"{place}: a list has a context and at least 2 endings, found {len(texts)} texts")
    return ChoiceExample(texts[0], "", tuple(texts[1:]), None, place)


def _ending_columns(known: dict[str, str]) -> tuple[str, ...]:
    """known: columns by their names in lower case."""
    lists = [known[name] for name in ("endings", "choices") if name in known][:1]
    numbered = sorted((name for name in known if _NUMBERED.fullmatch(name)), key=lambda name: int(name[6:]))
    return tuple(lists or [known[name] for name in numbered])


def _endings_of(values: dict[str, Any], columns: Sequence[str], place: str) -> tuple[str, ...]:
    first = columns[0]
    if len(columns) > 1 or _NUMBERED.fullmatch(first):
        endings = [(name, values[name]) for name in columns]
        while endings and endings[-1][1] is None:  # some questions have fewer endings
            endings.pop()
    elif isinstance(values[first], list):
        endings = [(first, ending) for ending in values[first]]
    else:
        raise UserError(f"{place}: the endings must be a list of strings, found {shorten(str(values[first]))!r}")
    if len(endings) < 2:
        raise UserError(f"{place}: {len(endings)} endings to choose among, and at least 2 are needed")
    return tuple(require_string(ending, name, place) for name, ending in endings)


def _label_of(values: dict[str, Any], layout: _Layout, endings: int, place: str) -> int | None:
    """Return a row's label; None if it has none. Raises UserError if it is not the index or column of an ending."""
    text = parse_label(values.get(layout.label), layout.label, place) if layout.label else None
    if text is None:
        return None
    index = layout.endings.index(text) if text in layout.endings else parse_index(text)
    if index is None or index >= endings:
        expected = f"the {endings} endings are 0 to {endings - 1}"
        raise UserError(f"{place}: {layout.label!r} is {shorten(text)!r}, and {expected}")
    return index


def _codah_columns(cells: list[str]) -> list[str] | None:
    """Recognize CODAH's files, which have no header: category (one letter), context, four endings, label."""
    is_codah = len(cells) == len(_CODAH) and len(cells[0]) == 1 and cells[-1] in ("0", "1", "2", "3")
    return _CODAH if is_codah else None
