"""Examples of one or two texts and any number of labels: lists, cells with a separator, or one column of 0 and 1 per label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import console
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.labels import LabelRules
from bertie.examples.reader import DataFormat, KindFacts, rows_or_lines
from bertie.examples.rows import Row, parse_label
from bertie.examples.texts import Example, LabeledTexts, TextColumns, cola_columns

NAMES = ("labels", "label")
"""Names of the column of labels that need no flag."""
ONE = "none"
"""The separator of cells with a single label."""
_SEPARATORS = (",", ";", "|")
_ROW_ID = re.compile(r"(.*[_ -])?(id|idx|index)|unnamed: \d+|", re.IGNORECASE)  # pandas names an index so
_PARTS = ("split", "fold")
"""Columns of 0 and 1 that could be labels, or say to which part a row belongs."""
_TRUE, _FALSE = ("1", "1.0", "true"), ("0", "0.0", "false")
_IN_NAMES = "_-.'’"  # characters that separate no labels
_REMEDY = "Name the column of the labels with --task.label, or the columns of 0 and 1 with --task.labels"


@dataclass(frozen=True)
class LabelSetExample:
    """One or two texts with their labels.

    Attributes:
        text: The text.
        text_pair: The second text; None for tasks on one text.
        labels: The gold labels, possibly none; None if they are unknown.
        source: The file and line ("dev.tsv:12"), for messages.
    """

    text: str
    text_pair: str | None
    labels: tuple[str, ...] | None
    source: str

    texts = Example.texts

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.labels

    def named(self, names: dict[str, str]) -> LabelSetExample:
        labels = self.labels and tuple(dict.fromkeys(names.get(label, label) for label in self.labels))
        return replace(self, labels=labels)


class LabelSetColumns(NamedTuple):
    """The columns of a row."""

    texts: TextColumns
    labels: tuple[str, ...]
    """The column of the labels; or with `each_a_label` a column of 0 and 1 for each label. Empty: the row has no labels."""
    each_a_label: bool

    @property
    def uses(self) -> dict[str, str | None]:
        return self.texts.uses | {"labels": ", ".join(self.labels)}


@dataclass(frozen=True)
class LabelSets:
    """Examples of one or two texts and any number of labels.

    An empty list and an empty cell say that a text has no label. null, NaN and a missing key say that the labels are
    unknown.

    Attributes:
        texts: Reads the texts.
        label: The column of the labels; empty: one of `NAMES`, or else one column of 0 and 1 for each label.
        separator: What stands between the labels of a cell. `ONE`: a cell is one label. Empty: found if the data leave no
            doubt.
        classes: All labels, if they are known.
        no_label: The labels that mean that a text has unknown labels. Empty: see `labels`.
        join: Whether labels that look the same are one.
    """

    texts: LabeledTexts
    label: str = ""
    separator: str = ""
    classes: tuple[str, ...] = ()
    no_label: tuple[str, ...] = ()
    join: bool = False
    data_format: DataFormat = DataFormat()
    facts, rows = KindFacts((LabelSetExample,), headerless=cola_columns), rows_or_lines

    @property
    def label_rules(self) -> LabelRules:
        return LabelRules(self.classes, self.no_label, join=self.join)

    def from_python(self, value: Any, place: str, source: str) -> LabelSetExample:
        return _example(value if isinstance(value, Example) else self.texts.from_python(value, place, source))

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> LabelSets:
        """Find the separator, unless it is named. Reads all rows if the labels are strings."""
        if self.separator or not labeled:
            return self
        cells: dict[str, str] = {}
        for row in rows:
            with suppress(UserError):
                if isinstance(row, Row) and (columns := self.columns(row, labeled)).labels and not columns.each_a_label:
                    value = row.values[columns.labels[0]]
                    if isinstance(value, str) and (value in self.classes or not is_written(value)):
                        cells.setdefault(value.strip(), row.place)
        try:
            separator = find_separator(cells, self.classes)
        except UsageError:
            if not (separator := self.data_format.separator or ""):
                raise
            console.info(f"{path or 'the examples'}: {separator!r} separates labels, as in the training examples")
        certain = None if separator == ONE else separator
        return replace(self, separator=separator, data_format=DataFormat(separator=certain))

    def columns(self, row: Row, labeled: bool) -> LabelSetColumns:
        return _find_columns(self, self.texts.columns(row, labeled=False), labeled)

    def to_example(self, row: Row, columns: LabelSetColumns, labeled: bool, seen: dict[Any, Any]) -> LabelSetExample:
        example = self.texts.to_example(row, columns.texts, False, seen)
        if not labeled:
            return _example(example)
        if "labels" not in seen and columns.each_a_label and not self.classes:
            console.info_once(f"{row.place}: each of these columns is a label: {join_names(columns.labels)}")
        first = seen.setdefault("labels", columns) if columns.labels else columns
        if not self.classes and (first.each_a_label, {*first.labels}) != (columns.each_a_label, {*columns.labels}):
            raise UsageError(f"{row.place}: its labels are not in the same columns as in earlier rows", _REMEDY)
        labels = None
        if columns.each_a_label:
            if self.classes and (missing := [name for name in self.classes if name not in columns.labels]):
                raise UserError(f"{row.place}: no column {missing[0]!r}, though other labels have one")
            labels = tuple(name for name in columns.labels if self._is_set(row, name))
        elif columns.labels:
            [name] = columns.labels
            labels = parse_labels(row.values[name], name, row.place, self.separator, self.classes)
        if labels is None:
            problem = f"{row.place}: its labels are unknown; its columns are: {join_names(columns.texts.names)}"
            raise UserError(problem, "Name the labels' column with --task.label; an empty list or cell means: no label")
        return _example(example, labels)

    def _is_set(self, row: Row, name: str) -> bool:
        value = parse_label(row.values[name], name, row.place)
        if (number := (value or "").lower()) in (*_TRUE, *_FALSE):
            return number in _TRUE
        shown = "an empty cell" if value is None else repr(shorten(value))
        problem = f"{row.place}: the column {name!r} has {shown}, but a column of a label has 0 or 1"
        if self.classes:
            raise UserError(problem)
        raise UsageError(problem, _REMEDY)  # of the file: it may be no label at all


def _find_columns(kind: LabelSets, texts: TextColumns, labeled: bool) -> LabelSetColumns:
    others = tuple(name for name in texts.names if name not in texts[:2])
    classes = tuple(name for name in kind.classes if name in others)
    if kind.label or not classes:
        cells = [name for name in others if (name == kind.label if kind.label else name.lower() in NAMES)]
        if len(cells) > 1 and labeled:
            raise UsageError("more than one column could be the labels", "Choose with --task.label")
        if cells or kind.label:
            return LabelSetColumns(texts, tuple(cells[:1]), False)
    columns = classes or tuple(name for name in others if not _ROW_ID.fullmatch(name) and not kind.classes)
    if labeled and (unclear := [name for name in columns if name.lower() in _PARTS and not classes]):
        raise UsageError(f"the column {unclear[0]!r} could be a label", "Name the columns of labels with --task.labels")
    return LabelSetColumns(texts, columns, bool(columns))


def _example(example: Example, labels: tuple[str, ...] | None = None) -> LabelSetExample:
    return LabelSetExample(example.text, example.text_pair, labels, example.source)


def find_separator(cells: dict[str, str], known: tuple[str, ...]) -> str:
    """Return the separator of cells, or `ONE` if each is one label.

    It is certain if every part of every cell with it is also a label by itself. A name with a space, a slash or another
    such character is one label if no part of it is a label by itself.

    Args:
        cells: The place of each cell.
        known: All labels, if they are known.

    Raises:
        UsageError: A cell could be one label or several.
    """
    alone = {*known, *(cell for cell in cells if not any(character in cell for character in _SEPARATORS))}
    doubtful = {cell: place for cell, place in cells.items() if cell not in known}
    used = [one for one in _SEPARATORS if any(one in cell for cell in doubtful)]
    for separator in used:
        for cell, place in doubtful.items():
            labels = {part.strip() for part in cell.split(separator)}
            if separator in cell and (len(used) > 1 or not labels <= alone):
                raise _doubt(cell, place, separator)
    parts = [(cell.split(used[0]) if used else [cell], place) for cell, place in doubtful.items()]
    for label, place in [(part.strip(), place) for labels_of_cell, place in parts for part in labels_of_cell]:
        for separator in {c for c in label if not (c.isalnum() or c in _IN_NAMES)} if label not in known else ():
            if not alone.isdisjoint(part.strip() for part in label.split(separator) if part.strip()):
                raise _doubt(label, place, separator)
    return used[0] if used else ONE


def _doubt(cell: str, place: str, separator: str) -> UsageError:
    remedy = f"If several, set --task.separator to '{separator}'; if a cell is one label, to {ONE}"
    return UsageError(f"{place}: {shorten(cell)!r} could be one label or several", remedy)


def parse_labels(
    value: Any, name: str, place: str, separator: str, known: tuple[str, ...] = ()
) -> tuple[str, ...] | None:
    """Return the labels of a text; None if they are unknown.

    Args:
        value: A list, a string with a list as JSON, Python or NumPy write it, or a string with labels.
        name: Its column, for messages.
        place: Its file and line, for messages.
        separator: What stands between labels. `ONE`: nothing, the string is one label. Empty: it may not be needed.
        known: All labels, if they are known.

    Raises:
        UserError: A label is empty or repeated, the value has another type, or it could be one label or several.
    """
    if isinstance(value, str):
        cell = value.strip()
        if (cell.startswith(("[", "{")) or is_written(cell)) and cell not in known:
            value = parse_cell(cell, name, place)
        elif not cell:
            return ()
        elif cell.lower() == "nan":
            return None
        else:
            mark = separator or find_separator({cell: place}, known)
            if mark == ONE and cell.isascii():
                return (cell,)
            value = [cell] if mark == ONE or cell in known else cell.split(mark)
    if not isinstance(value, list | tuple):
        single = parse_label(value, name, place)
        return None if single is None else (single,)
    labels = tuple(parse_label(item, name, place) for item in value)
    if None in labels:
        raise UserError(f"{place}: a label in {name!r} is empty")
    if len(set(labels)) < len(labels) and {str(label) for label in labels} <= {*_TRUE, *_FALSE}:
        problem = f"{place}: {name!r} has 0 or 1 for each label, {shorten(str(value))}"
        raise UsageError(problem, "Write the names of a text's labels, or a column of 0 and 1 for each label")
    if len(set(labels)) < len(labels):
        [(twice, _)] = Counter(labels).most_common(1)
        raise UserError(f"{place}: the label {shorten(str(twice))!r} occurs twice")
    return tuple(str(label) for label in labels)
