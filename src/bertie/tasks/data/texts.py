"""Examples of one or two texts and a label, from .tsv, .csv, .jsonl, .parquet and .txt files and from Python values.

GLUE's original files need no column names: their layouts are recognized from the header, and CoLA's, which has none,
from its first row. So are common names (`_LAYOUTS` and the label names below). `TextReader` can be told other columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from bertie import console
from bertie.errors import UsageError, UserError, join_names, raise_error, shorten
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.left_out import leave_out, raise_mistake
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    Row,
    describe_bad_number,
    file_format,
    label_or_none,
    may_differ,
    named_columns,
    parse_label,
    parse_label_number,
    read_rows,
    require_distinct_columns,
    require_string,
    row_from_python,
)
from bertie.tasks.data.text_layouts import TextLayout, describe_texts, find_layout
from bertie.tasks.data.unknown_labels import MARKERS, among, find_markers, require_stated, without_unknown

CLASSES = ("label", "gold_label", "class", "entailment_judgment")
SCORES = ("score", "relatedness_score", "similarity", "label")
_MAX_LAYOUTS = 1000  # layouts in memory, for .jsonl files where each row has other keys
_COLA = ["source", "label", "mark", "sentence"]
_NO_AGREEMENT = "-"  # gold_label in MNLI and SNLI if the annotators did not agree
_CLOSING = ("]", ")", "}")  # with which lists end that a program wrote as text
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number"}


@dataclass(frozen=True)
class Example:
    """One or two texts.

    Attributes:
        text: The text.
        text_pair: The second text; None for tasks on one text.
        label: The gold label; None if it is unknown.
        source: The file and line ("dev.tsv:12"), for messages.
    """

    text: str
    text_pair: str | None
    label: str | None
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return None if self.label is None else (self.label,)

    def named(self, names: dict[str, str]) -> Example:
        return replace(self, label=names.get(self.label or "", self.label))


@dataclass(frozen=True)
class TextReader:
    """Reads examples of one or two texts.

    Attributes:
        text: Column of the text in a table, or key in a .jsonl file. Empty: found from the header.
        text_pair: Column of the second text, for tasks on pairs. Empty: found from the header.
        label: Column of the label. Empty: found from the header.
        label_names: The names that are recognized as the label column.
        numbers: Whether required labels must be numbers (see `parse_label_number`); None: if most of the first labels
            in a file are.
        paired: Whether each example must have two texts; None: as in the first row.
        no_label: The labels that mean that the label is unknown. Empty: see `unknown_labels`.
        classes: All classes, if they are known.
    """

    text: str = ""
    text_pair: str = ""
    label: str = ""
    label_names: tuple[str, ...] = CLASSES
    numbers: bool | None = False
    paired: bool | None = None
    no_label: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_distinct_columns(text=self.text, text_pair=self.text_pair, label=self.label)

    def read(self, path: Path) -> Iterator[Example | UserError]:
        """Read examples with labels, for training and evaluation.

        Without a label column all labels are None; with one, an empty label is an error.

        Raises:
            UsageError: if the file does not exist, is a .txt file or of unknown format, or its columns are unclear.
        """
        if file_format(path) == "txt":
            problem = "a line is a text, without labels, in .txt and stdin"
            raise UsageError(f"{path}: {problem}: give a .tsv, .csv or .jsonl")
        return self._labeled(lambda: self.rows(path, labeled=True), str(path))

    def _labeled(
        self, rows: Callable[[], Iterator[Row | Example | UserError]], where: str
    ) -> Iterator[Example | UserError]:
        """Convert rows with labels, wherever they are from."""

        def kept() -> Iterator[Row | Example | UserError]:
            return leave_out(rows(), (self.text, self.text_pair, self.label))

        if self.numbers is not None:
            return self.examples(kept(), where, labeled=True)
        probed = islice(replace(self, numbers=False).examples(kept(), where, labeled=True), PROBED_ROWS)
        labels = [example.label for example in probed if isinstance(example, Example) and example.label is not None]
        numeric = 2 * sum(parse_label_number(label) is not None for label in labels) >= len(labels) > 0
        self._require_scores({*labels}, self._columns(rows(), where), where)
        return replace(self, numbers=numeric).examples(kept(), where, labeled=True)

    def _require_scores(self, labels: set[str], columns: dict[str, str], where: str) -> None:
        """Raise a UsageError if numbers in a column for classes could be classes: NLI's have 0 for the most similar pairs."""
        name = columns.get("label", "")
        labels = {label for label in labels if label.lower() not in MARKERS}
        classes = len(labels) > 2 or (labels and columns.get("text", "").lower() == "premise")
        if name.lower() in CLASSES and not self.label and classes and all(map(_is_whole, labels)):
            problem = f"{where}: the numbers of {name!r} could be classes or scores: {join_names(sorted(labels)[:5])}"
            raise UsageError(problem, f"If a larger one means more similar texts, say --task.label {name}")

    def stream(self, path: Path) -> Iterator[Example | UserError]:
        """Read examples for prediction, lazily: every row gives an example or an error, in order.

        Labels are read but not required: the column `label` may be missing, and a gold_label of
        "-" becomes None.
        """
        is_txt = file_format(path) == "txt"  # a line has no columns, and is a text, whatever it looks like
        reader = replace(self, text="text", text_pair="", label="") if is_txt else self
        return reader.examples(reader.rows(path, labeled=False), str(path), labeled=False)

    def rows(self, path: Path, labeled: bool) -> Iterator[Row | UserError]:
        """Read the rows of a file, with an error in place of each one before the first that has the columns."""

        def find_columns(row: Row) -> TextLayout:
            return self._next_layout(tuple(row.values), None, str(path), row.place, labeled)

        return read_rows(path, cola_columns, find_columns)

    def markers(self, labels: Collection[str], where: str) -> set[str]:
        """Return which labels mean that the label is unknown: see `LeavesOut`."""
        numbers = self.numbers is not False and all(parse_label_number(label) is not None for label in labels)
        return find_markers(labels, where, self.classes, self.no_label, numbers)

    def labeled(self, examples: list[Example], where: str, training: bool = False) -> list[Example]:
        """Return the examples whose label is known: see `LeavesOut`."""
        labels = [example.label for example in examples]
        known = {label for label in labels if label}
        if training:
            require_stated(known, where, self.no_label)
        return without_unknown(examples, labels, self.markers(known, where), where)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: those of its first row that can be read."""
        return self._columns(self.rows(path, labeled=False), str(path))

    def _columns(self, rows: Iterator[Row | Example | UserError], where: str) -> dict[str, str]:
        if (names := next((tuple(row.values) for row in rows if isinstance(row, Row)), None)) is None:
            return {}
        layout = self.find_layout(names, where, labeled=False)
        uses = {"text": layout.text, "second text": layout.text_pair, "label": layout.label}
        ends = tuple(f"{(layout.label or '').lower()}_{end}" for end in ("text", "name", "names", "str"))
        uses["names of the labels (not used)"] = ", ".join(named_columns(names, ends))
        return {use: name for use, name in uses.items() if name}

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Convert dicts ({"text": …, "label": …} or other known names), strings, pairs of strings, or `Example`s.

        Every value gives one example. labeled: as `read`, or else as `stream`.

        Raises:
            UsageError: if the columns are unclear.
            UserError: for the first bad value.
        """
        rows = self.value_rows(given)
        if labeled:
            kept = list(rows)
            yield from map(raise_mistake, self._labeled(lambda: iter(kept), "the examples"))
        else:
            yield from map(raise_error, self.examples(rows, "the examples", labeled=False))

    def value_rows(self, given: Iterable[Any], own: type = Example) -> Iterator[Any]:
        """Return Python values as rows, or as the examples that they are. own: the class of other ones."""
        for number, value in enumerate(require_list(given), 1):
            yield value if isinstance(value, own) else self._value_row(value, f"example {number}")

    def _value_row(self, value: Any, place: str) -> Row | Example:
        if isinstance(value, Example):
            return value
        if isinstance(value, tuple | list):
            if len(value) != 2:
                raise UsageError(f"{place}: a pair has two texts and this one has {len(value)}: {str(value)[:60]}")
            text, text_pair = require_string(value[0], "text", place), require_string(value[1], "text_pair", place)
            return Example(text, text_pair, None, place)
        if isinstance(value, str):  # a text, whatever it looks like
            self._require_number(TextLayout("text", None, None), "the examples", place)
            return Example(require_string(value, "text", place), None, None, place)
        if not isinstance(value, dict):
            raise UserError(f"{place}: expected a dict, a string, a pair or an Example, got {type(value).__name__}")
        return row_from_python(value, place)

    def examples(
        self, rows: Iterator[Row | Example | UserError], where: str, labeled: bool
    ) -> Iterator[Example | UserError]:
        """Convert rows, in order. If labels are not required, each gives one example or error.

        Args:
            rows: The rows, or errors or examples in their place.
            where: The file, for messages.
            labeled: Whether labels are required, where a row has their column.
        """
        layouts: dict[tuple[str, ...], TextLayout] = {}
        first: TextLayout | None = None
        has_labels = False
        kinds: dict[type, str] = {}  # the place of the first label of each type
        lists: dict[bool, str] = {}  # and of the first list with one label, and with several
        for row in rows:
            if not isinstance(row, Row):
                yield row
                continue
            names = tuple(row.values)
            try:
                if names not in layouts:
                    if len(layouts) == _MAX_LAYOUTS:
                        layouts.clear()
                    layouts[names] = self._next_layout(names, first, where, row.place, labeled)
                layout = layouts[names]
                if first is None:
                    self._require_text(row, layout)
                first, has_labels = first or layout, has_labels or layout.label is not None
                if labeled and (label := layout.label):
                    given = row.values[label]
                    if type(given) is list or (type(given) is str and given[-1:] in _CLOSING and is_written(given)):
                        row = row._replace(values={**row.values, label: _only_label(given, label, row.place, lists)})
                example = _to_example(row, layout, labeled)
            except UsageError:
                raise
            except UserError as error:
                yield error
                continue
            if not labeled and layout.label == "gold_label" and example.label == _NO_AGREEMENT:
                yield replace(example, label=None)
                continue
            if layout.label and example.label is not None and labeled:
                label = row.values[layout.label]
                if type(label) not in kinds:
                    self._require_one_kind(kinds, label, row.place)
            if labeled and has_labels and (problem := self._label_problem(example.label)):
                yield UserError(f"{row.place}: {problem}")
            else:
                yield example

    def _require_one_kind(self, kinds: dict[type, str], label: Any, place: str) -> None:
        """Raise a UserError for the whole file if some labels are text and others are numbers, which are other classes."""
        if self.numbers is False:
            for other, before in kinds.items():
                if _KINDS[other] != _KINDS[type(label)]:
                    problem = f"{place}: the label {shorten(str(label))!r} is {_KINDS[type(label)]}"
                    raise UserError(f"{problem}, and that of {before} is {_KINDS[other]}: write all in the same way")
        kinds[type(label)] = place

    def _require_text(self, row: Row, layout: TextLayout) -> None:
        """Raise a UsageError if the first text is a list that a program wrote, unless the caller named the column."""
        text = row.values[layout.text]
        if self.text or not is_written(text):
            return
        written = None
        with suppress(UserError):
            written = parse_cell(text, layout.text, row.place)
        if isinstance(written, list):
            problem = f"{row.place}: {layout.text!r} is a list that was written as text, {shorten(text)}"
            raise UsageError(problem, f"Join its words; if it is a text, say --task.text {layout.text}")

    def _label_problem(self, label: str | None) -> str:
        """Say what is wrong with a required label; "" if nothing is."""
        if label is None:
            return "no label"
        if self.numbers and parse_label_number(label) is None and not among([label], self.no_label):
            return f"the label is {describe_bad_number(label)}"
        return ""

    def _next_layout(
        self, names: tuple[str, ...], first: TextLayout | None, where: str, place: str, labeled: bool
    ) -> TextLayout:
        """Return the layout of a row with other columns than the rows before. Only the label may be new or missing."""
        try:
            layout = self.find_layout(names, where, labeled and not first)
        except UsageError as error:
            if not first:
                raise
            raise UserError(error.problem.replace(where, place, 1), error.remedy) from error
        if first and layout[:2] != first[:2]:
            found, before = describe_texts(layout), describe_texts(first)
            raise UserError(f"{place}: found {found}, but {before} in the rows before")
        self._require_number(layout, where, place)
        return layout

    def _require_number(self, layout: TextLayout, where: str, place: str) -> None:
        """Raise an error if a row has one text and the training examples two, or the other way round."""
        if self.paired is not None and self.paired != (layout.text_pair is not None):
            kind = UserError if may_differ(Path(where)) else UsageError  # about this row, or about all rows
            found, expected = ("one text", "two") if self.paired else ("two texts", "one")
            texts = describe_texts(layout)
            raise kind(f"{place}: {found}, where the training examples have {expected}; found {texts}")

    def find_layout(self, names: tuple[str, ...], where: str, labeled: bool) -> TextLayout:
        """Find the columns among `names`. Raises a UsageError that lists the names and the flag to choose with."""
        return find_layout(names, where, labeled, TextLayout(self.text, self.text_pair, self.label), self.label_names)


def pairs_of(given: Iterable[Any]) -> list[Any]:
    """Return pairs of texts in memory: those of rows, such as dicts and frames, and other values as they are.

    Raises UsageError if the columns are unclear, and UserError if a row has no two texts.
    """
    values = list(require_list(given))
    if not any(isinstance(value, dict) for value in values):
        return values
    return [(each.text, each.text_pair) for each in TextReader(label_names=(), paired=True).values(values)]


def cola_columns(cells: list[str]) -> list[str] | None:
    """Recognize CoLA's files, which have no header."""
    is_cola = len(cells) == 4 and cells[1] in ("0", "1") and not cells[2].strip("*?")
    return _COLA if is_cola else None


def _to_example(row: Row, layout: TextLayout, strict_label: bool) -> Example:
    """strict_label: whether a bad label is an error, instead of None."""
    values, source, place = row
    text = require_string(values[layout.text], layout.text, place)
    pair = require_string(values[layout.text_pair], layout.text_pair, place) if layout.text_pair else None
    if (name := layout.label) is None:
        return Example(text, pair, None, source)
    label = values[name]
    if type(label) is str and label.isascii():  # most are: half of the time of `parse_label`
        label = label.strip()
        return Example(text, pair, None if not label or label.lower() == "nan" else label, source)
    return Example(text, pair, label_or_none(lambda: parse_label(label, name, place), strict_label), source)


def _only_label(given: Any, name: str, place: str, lists: dict[bool, str]) -> Any:
    """Return the label in a list of one, and None for an empty list. A text with a bracket at its end may be no list.

    lists: the places of the first list of one and of the first one with more labels.

    Raises:
        UserError: It has several labels. UsageError: It has, and another row has a list of one, or the other way round.
    """
    found = given
    if isinstance(given, str):
        with suppress(UserError):
            found = parse_cell(given, name, place)
    if not isinstance(found, list):
        return given
    if not found:
        return None
    lists.setdefault(several := len(found) > 1, place)
    if len(lists) > 1:
        problem = f"{lists[True]}: {name!r} is a list of several labels, and that of {lists[False]} has one"
        raise UsageError(problem, "multi_label learns several; leave out or split such rows to learn one")
    if several:
        problem = (
            f"the label is a list, {shorten(str(given))}, and a text has one label here: multi_label learns several"
        )
        raise UserError(f"{place}: {problem}")
    console.info_once(f"{name!r} is a list of one label in each row")
    return found[0]


def _is_whole(label: str) -> bool:
    return label.removesuffix(".0").isdecimal()
