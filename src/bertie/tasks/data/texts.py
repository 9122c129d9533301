"""Examples of one or two texts and a label, from .tsv, .csv, .jsonl, .parquet and .txt files and from Python values.

GLUE's original files need no column names: their layouts are recognized from the header, and CoLA's, which has none,
from its first row. So are common names (`_LAYOUTS` and the label names below). `TextReader` can be told other columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    Row,
    describe_bad_number,
    file_format,
    join_names,
    label_or_none,
    may_differ,
    named_columns,
    parse_label,
    parse_label_number,
    raise_error,
    read_rows,
    require_distinct_columns,
    require_string,
    row_from_python,
    shorten,
)
from bertie.tasks.data.unknown_labels import MARKERS, find_markers, without_unknown

# (text, second text or None, label names that only this layout has), in lower case
_LAYOUTS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("#1 string", "#2 string", ("quality",)),  # MRPC
    ("question1", "question2", ("is_duplicate",)),  # QQP
    ("question", "sentence", ()),  # QNLI
    ("sentence1", "sentence2", ()),  # RTE, WNLI, MNLI, STS-B
    ("sentence_a", "sentence_b", ()),  # SICK
    ("premise", "hypothesis", ()),
    ("text_a", "text_b", ()),
    ("text", "text_pair", ()),
    ("sentence", None, ()),  # SST-2, CoLA
    ("text", None, ()),
)
CLASSES = ("label", "gold_label", "class", "entailment_judgment")
SCORES = ("score", "relatedness_score", "similarity", "label")
_MAX_LAYOUTS = 1000  # layouts in memory, for .jsonl files where each row has other keys
_COLA = ["source", "label", "mark", "sentence"]
_NO_AGREEMENT = "-"  # gold_label in MNLI and SNLI if the annotators did not agree
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


class TextLayout(NamedTuple):
    """The columns of the texts and of the label of a row."""

    text: str
    text_pair: str | None
    label: str | None


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
        if self.numbers is None:
            probed = islice(replace(self, numbers=False).read(path), PROBED_ROWS)
            labels = [example.label for example in probed if isinstance(example, Example) and example.label is not None]
            numeric = 2 * sum(parse_label_number(label) is not None for label in labels) >= len(labels) > 0
            self._require_scores(set(labels), path)
            return replace(self, numbers=numeric).read(path)
        return self.examples(self.rows(path, labeled=True), str(path), labeled=True)

    def _require_scores(self, labels: set[str], path: Path) -> None:
        """Raise a UsageError if numbers in a column for classes could be classes: NLI's have 0 for the most similar pairs."""
        columns = self.columns(path)
        name = columns.get("label", "")
        labels = {label for label in labels if label.lower() not in MARKERS}
        classes = len(labels) > 2 or (labels and columns.get("text", "").lower() == "premise")
        if name.lower() in CLASSES and not self.label and classes and all(map(str.isdecimal, labels)):
            problem = f"{path}: the numbers of {name!r} could be classes or scores: {join_names(sorted(labels)[:5])}"
            raise UsageError(problem, f"If a larger one means more similar texts, say --task.label {name}")

    def stream(self, path: Path) -> Iterator[Example | UserError]:
        """Read examples for prediction, lazily: every row gives an example or an error, in order.

        Labels are read but not required: the column `label` may be missing, and a gold_label of
        "-" becomes None.
        """
        is_txt = file_format(path) == "txt"  # a line has no columns
        reader = replace(self, text="", text_pair="", label="") if is_txt else self
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

    def labeled(self, examples: list[Example], where: str) -> list[Example]:
        """Return the examples whose label is known: see `LeavesOut`."""
        labels = [example.label for example in examples]
        return without_unknown(examples, labels, self.markers({label for label in labels if label}, where), where)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: those of its first row that can be read."""
        rows = self.rows(path, labeled=False)
        if (names := next((tuple(row.values) for row in rows if isinstance(row, Row)), None)) is None:
            return {}
        layout = self.find_layout(names, str(path), labeled=False)
        uses = {"text": layout.text, "second text": layout.text_pair, "label": layout.label}
        ends = tuple(f"{(layout.label or '').lower()}_{end}" for end in ("text", "name", "names", "str"))
        uses["names of the labels (not used)"] = ", ".join(named_columns(names, ends))
        return {use: name for use, name in uses.items() if name}

    def values(self, given: Iterable[Any]) -> Iterator[Example]:
        """Convert dicts ({"text": …, "label": …} or other known names), strings, pairs of strings, or `Example`s.

        Every value gives one example; its label is None if it has none.

        Raises:
            UsageError: if the columns are unclear.
            UserError: for the first bad value.
        """
        rows = (self.value_row(value, f"example {number}") for number, value in enumerate(require_list(given), 1))
        yield from map(raise_error, self.examples(rows, "the examples", labeled=None))

    def value_row(self, value: Any, place: str) -> Row | Example:
        """Return a Python value as a row, or as the example that it is."""
        if isinstance(value, Example):
            return value
        if isinstance(value, tuple | list):
            if len(value) != 2:
                raise UsageError(f"{place}: a pair has two texts and this one has {len(value)}: {str(value)[:60]}")
            text, text_pair = require_string(value[0], "text", place), require_string(value[1], "text_pair", place)
            return Example(text, text_pair, None, place)
        if not isinstance(value, dict | str):
            raise UserError(f"{place}: expected a dict, a string, a pair or an Example, got {type(value).__name__}")
        return row_from_python(value if isinstance(value, dict) else {self.text or "text": value}, place)

    def examples(
        self, rows: Iterator[Row | Example | UserError], where: str, labeled: bool | None
    ) -> Iterator[Example | UserError]:
        """Convert rows, in order. If labels are not required, each gives one example or error.

        Args:
            rows: The rows, or errors or examples in their place.
            where: The file, for messages.
            labeled: Whether labels are required; None: they may be missing, but the label column must be clear.
        """
        layouts: dict[tuple[str, ...], TextLayout] = {}
        first: TextLayout | None = None
        has_labels = False
        kinds: dict[type, str] = {}  # the place of the first label of each type
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
                if first is None and labeled:
                    self._require_text(row, layout)
                first, has_labels = first or layout, has_labels or layout.label is not None
                example = _to_example(row, layout, labeled is not False)
            except UsageError:
                raise
            except UserError as error:
                yield error
                continue
            if not labeled and layout.label == "gold_label" and example.label == _NO_AGREEMENT:
                yield replace(example, label=None)
                continue
            if layout.label and example.label is not None and labeled is not False:
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
        if self.numbers and label not in self.no_label and parse_label_number(label) is None:
            return f"the label is {describe_bad_number(label)}"
        if label[0] == "[" and is_written(label):
            with suppress(UserError):
                parse_cell(label, "label", "")
                return (
                    f"the label is a list, {shorten(label)}, and a text has one label here: multi_label learns several"
                )
        return ""

    def _next_layout(
        self, names: tuple[str, ...], first: TextLayout | None, where: str, place: str, labeled: bool | None
    ) -> TextLayout:
        """Return the layout of a row with other columns than the rows before. Only the label may be new or missing."""
        try:
            layout = self.find_layout(names, where, labeled if labeled is None or not first else False)
        except UsageError as error:
            if not first:
                raise
            raise UserError(error.problem.replace(where, place, 1), error.remedy) from error
        if first and layout[:2] != first[:2]:
            found, before = _describe_texts(layout), _describe_texts(first)
            raise UserError(f"{place}: found {found}, but {before} in the rows before")
        if self.paired is not None and self.paired != (layout.text_pair is not None):
            kind = UserError if may_differ(Path(where)) else UsageError  # about this row, or about all rows
            found, expected = ("one text", "two") if self.paired else ("two texts", "one")
            texts = _describe_texts(layout)
            raise kind(f"{place}: {found}, where the training examples have {expected}; found {texts}")
        return layout

    def find_layout(self, names: tuple[str, ...], where: str, labeled: bool | None) -> TextLayout:
        """Find the columns among `names`. Raises a UsageError that lists the names and the flag to choose with."""
        known = {name.lower(): name for name in names}
        if len(known) < len(names):  # Text beside text: both are candidates
            twice = {name for name, count in Counter(name.lower() for name in names).items() if count > 1}
            known |= dict.fromkeys(twice, "")

        def usage_error(problem: str, flags: str) -> UsageError:
            return UsageError(f"{where}: {problem}; its columns are: {join_names(names)}", f"Choose with {flags}")

        for flag, name in (("--task.text", self.text), ("--task.text-pair", self.text_pair)):
            if name and name not in names:
                raise usage_error(f"no column {name!r}", flag)
        label_names = self.label_names
        if self.text:
            text, pair = self.text, self.text_pair or None
        elif self.text_pair:
            raise usage_error("--task.text-pair without --task.text", "both")
        else:
            layouts = [entry for entry in _LAYOUTS if entry[0] in known and (entry[1] is None or entry[1] in known)]
            if any(entry[1] for entry in layouts):  # one column of a pair is not a layout by itself
                used = {name for entry in layouts if entry[1] for name in entry[:2]}
                layouts = [entry for entry in layouts if entry[1] or entry[0] not in used]
            if len(layouts) != 1:
                problem = "more than one column could be" if layouts else "cannot tell which column is"
                flags = "--task.text, and for two texts --task.text-pair, and --task.label for the label"
                raise usage_error(f"{problem} the text", flags)
            [(text_name, pair_name, own_labels)] = layouts
            text, pair = known[text_name], known[pair_name] if pair_name else None
            if not text or pair == "":
                raise usage_error("two columns have the name of the text, in capitals or not", "--task.text")
            label_names += own_labels
        labels = [known[name] for name in label_names if name in known and known[name] not in (text, pair)]
        if self.label:
            if self.label in (text, pair):
                raise usage_error(
                    f"{self.label!r} is the text, and cannot be the label", "--task.text and --task.label"
                )
            if labeled and self.label not in names:
                raise usage_error(f"no column {self.label!r}", "--task.label")
            labels = [self.label] if self.label in names else []
        if labeled is not False and (len(labels) > 1 or "" in labels):
            raise usage_error("more than one column could be the label", "--task.label")
        return TextLayout(text, pair, labels[0] if len(labels) == 1 and labels[0] else None)


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


def _describe_texts(layout: TextLayout) -> str:
    return " and ".join(repr(name) for name in layout[:2] if name)
