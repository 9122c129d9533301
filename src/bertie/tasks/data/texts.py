"""Examples of one text or two and a label: from .tsv, .csv and .jsonl files, texts of .txt, and from Python values.

GLUE's original files need no column names: their layouts are recognised from the header, and CoLA's, which has none,
from its first row. So are the usual names (`_LAYOUTS` and the label names below); other names are given as `Columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    PROBED_ROWS,
    STDIN,
    Row,
    describe_bad_number,
    join_names,
    label,
    parse_label_number,
    require_distinct_columns,
    require_list,
    row_from_python,
    rows,
    skip_until_columns,
    string,
)

# (text, second text, label names of that layout only), in lower case; None: one text
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
_LAYOUTS_KEPT = 1000  # of .jsonl whose rows have keys of their own
_COLA = ["source", "label", "mark", "sentence"]
_NO_AGREEMENT = "-"  # gold_label of MNLI and SNLI where the annotators did not agree


@dataclass(frozen=True)
class Example:
    """One text, or two, and what is known of it. `source` is for messages: "dev.tsv:12"."""

    text: str
    text_pair: str | None
    label: str | None
    source: str


@dataclass(frozen=True)
class TextColumns:
    """Which columns of a .tsv or .csv file, or keys of a .jsonl file, hold what. Empty: found from the names."""

    text: str = ""
    """Column of the text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs (empty: found from the header)."""
    label: str = ""
    """Column of the label (empty: found from the header)."""

    def __post_init__(self) -> None:
        require_distinct_columns(text=self.text, text_pair=self.text_pair, label=self.label)


class _Layout(NamedTuple):
    text: str
    text_pair: str | None
    label: str | None


@dataclass(frozen=True)
class TextReader:
    """labels: the names of label columns that are recognised; numbers: whether labels that are needed must be numbers that
    can be learned (`number_of`), None: where most of a file's first ones are; paired: whether there have to be two texts, if
    that is known, else as in the first row.

    Rows whose gold_label is "-" (MNLI, SNLI: the annotators did not agree) are left out where labels are needed.
    """

    columns: TextColumns = TextColumns()
    labels: tuple[str, ...] = CLASSES
    numbers: bool | None = False
    paired: bool | None = None

    def read(self, path: Path) -> Iterator[Example | UserError]:
        """With labels, for training and evaluation; without a label column every label is None, an empty one is an error.

        Errors, raised: UsageError for a missing file, an unknown ending, a .txt, or columns that cannot be told.
        """
        if path.suffix == ".txt" or path == STDIN:
            raise UsageError(f"{path}: of .txt and stdin a line is a text, without labels: give a .tsv, .csv or .jsonl")
        found = self._from_file(path, labelled=True)
        return found if self.numbers is not None else _numbered(found, path)

    def stream(self, path: Path) -> Iterator[Example | UserError]:
        """The same lazily, for prediction: every row gives an example or an error, in order.

        Labels are kept where they are found, but not needed: a label column that `columns` names may be missing, and a
        gold_label of "-" is None.
        """
        plain = path.suffix == ".txt" or path == STDIN
        reader = replace(self, columns=TextColumns()) if plain else self  # a line has no columns
        return reader._from_file(path, labelled=False)

    def _from_file(self, path: Path, labelled: bool) -> Iterator[Example | UserError]:
        def find(row: Row) -> _Layout:
            return self._next_layout(tuple(row.values), None, str(path), row.place, labelled)

        found = rows(path, headless)
        if path.suffix == ".jsonl":  # in tables all rows have the same columns
            found = skip_until_columns(found, path, find)
        return self._examples(found, str(path), labelled)

    def values(self, given: Iterable[Any]) -> Iterator[Example]:
        """From Python values: dicts ({"text": …, "label": …} or any names above), strings, pairs of them, or Examples.

        Every value gives one example; one without a label has None. Errors: UsageError, UserError for the first bad one.
        """
        found = (self._value_row(value, f"example {number}") for number, value in enumerate(require_list(given), 1))
        for example in self._examples(found, "the examples", labelled=None):
            if isinstance(example, UserError):
                raise example
            yield example

    def _value_row(self, value: Any, place: str) -> Row | Example:
        if isinstance(value, Example):
            return value
        if isinstance(value, tuple | list):
            if len(value) != 2:
                raise UsageError(f"{place}: a pair has two texts and this one {len(value)}: {str(value)[:60]}")
            return Example(string(value[0], "text", place), string(value[1], "text_pair", place), None, place)
        if not isinstance(value, dict | str):
            raise UserError(f"{place}: expected a dict, a string, a pair or an Example, got {type(value).__name__}")
        return row_from_python(value if isinstance(value, dict) else {self.columns.text or "text": value}, place)

    def _examples(
        self, found: Iterator[Row | Example | UserError], where: str, labelled: bool | None
    ) -> Iterator[Example | UserError]:
        """labelled: whether labels are needed; None: nobody said, so they may be missing but must be plain."""
        layouts: dict[tuple[str, ...], _Layout] = {}
        first: _Layout | None = None
        have_labels = False
        for row in found:
            if not isinstance(row, Row):
                yield row
                continue
            names = tuple(row.values)
            try:
                if names not in layouts:
                    if len(layouts) == _LAYOUTS_KEPT:
                        layouts.clear()
                    layouts[names] = self._next_layout(names, first, where, row.place, labelled)
                layout = layouts[names]
                first, have_labels = first or layout, have_labels or layout.label is not None
                example = _example(row, layout, labelled is not False)
            except UsageError:
                raise
            except UserError as error:
                yield error
                continue
            if example.label == _NO_AGREEMENT and layout.label == "gold_label":
                if not labelled:
                    yield replace(example, label=None)
            elif labelled and have_labels and (problem := self._problem(example.label)):
                yield UserError(f"{row.place}: {problem}")
            else:
                yield example

    def _problem(self, label: str | None) -> str:
        """Of a label that is needed; empty: none."""
        if label is None:
            return "no label"
        return (
            f"the label is {describe_bad_number(label)}" if self.numbers and parse_label_number(label) is None else ""
        )

    def _next_layout(
        self, names: tuple[str, ...], first: _Layout | None, where: str, place: str, labelled: bool | None
    ) -> _Layout:
        """The layout of a row that names other columns than the rows before: it may only add or lose the label."""
        try:
            layout = self._layout(names, where, labelled if labelled is None or not first else False)
        except UsageError as error:
            if not first:
                raise
            raise UserError(str(error).replace(where, place, 1)) from error
        if first and layout[:2] != first[:2]:
            raise UserError(f"{place}: found {_texts(layout)}, but {_texts(first)} in the rows before")
        if self.paired is not None and self.paired != (layout.text_pair is not None):
            error = UserError if where.endswith(".jsonl") else UsageError  # of this row, or of all
            have, had = ("one text", "two") if self.paired else ("two texts", "one")
            raise error(f"{place}: {have}, where the examples of training have {had}; found {_texts(layout)}")
        return layout

    def _layout(self, names: tuple[str, ...], where: str, labelled: bool | None) -> _Layout:
        """Which names hold what. Errors: UsageError that lists the names and says which flag chooses among them."""
        columns, known = self.columns, {name.lower(): name for name in names}

        def refuse(problem: str, flags: str) -> UsageError:
            return UsageError(f"{where}: {problem}; its columns are: {join_names(names)}. Choose with {flags}")

        for flag, name in (("--task.text", columns.text), ("--task.text-pair", columns.text_pair)):
            if name and name not in names:
                raise refuse(f"no column {name!r}", flag)
        label_names = self.labels
        if columns.text:
            text, pair = columns.text, columns.text_pair or None
        elif columns.text_pair:
            raise refuse("--task.text-pair without --task.text", "both")
        else:
            found = [layout for layout in _LAYOUTS if layout[0] in known and (layout[1] is None or layout[1] in known)]
            if any(layout[1] for layout in found):  # a pair's column alone is not a layout of its own
                used = {name for layout in found if layout[1] for name in layout[:2]}
                found = [layout for layout in found if layout[1] or layout[0] not in used]
            if len(found) != 1:
                problem = "more than one column could be the text" if found else "cannot tell which column is the text"
                raise refuse(problem, "--task.text, and for two texts --task.text-pair, and --task.label for the label")
            text, pair = known[found[0][0]], known[found[0][1]] if found[0][1] else None
            label_names += found[0][2]
        labels = [known[name] for name in label_names if name in known and known[name] not in (text, pair)]
        if columns.label and columns.label in (text, pair):
            raise refuse(f"{columns.label!r} is the text, and cannot be the label", "--task.text and --task.label")
        if columns.label:
            if labelled and columns.label not in names:
                raise refuse(f"no column {columns.label!r}", "--task.label")
            labels = [columns.label] if columns.label in names else []
        if labelled is not False and len(labels) > 1:
            raise refuse("more than one column could be the label", "--task.label")
        return _Layout(text, pair, labels[0] if len(labels) == 1 else None)


def _numbered(found: Iterator[Example | UserError], path: Path) -> Iterator[Example | UserError]:
    """An error in place of each example whose label is no number, where those of most of the first are."""
    first = list(islice(found, PROBED_ROWS))
    labels = [each.label for each in first if isinstance(each, Example) and each.label is not None]
    scored = 2 * sum(parse_label_number(label) is not None for label in labels) >= len(labels) > 0
    for each in chain(first, found):
        if scored and isinstance(each, Example) and each.label is not None and parse_label_number(each.label) is None:
            yield UserError(f"{path.parent / each.source}: the label is {describe_bad_number(each.label)}")
        else:
            yield each


def headless(cells: list[str]) -> list[str] | None:
    """CoLA's files have no names."""
    is_cola = len(cells) == 4 and cells[1] in ("0", "1") and not cells[2].strip("*?")
    return _COLA if is_cola else None


def _example(row: Row, layout: _Layout, labelled: bool) -> Example:
    """labelled: whether a label that is none is an error; else it is None."""
    values, source, place = row
    text = string(values[layout.text], layout.text, place)
    pair = string(values[layout.text_pair], layout.text_pair, place) if layout.text_pair else None
    try:
        said = label(values[layout.label], layout.label, place) if layout.label else None
    except UserError:
        if labelled:
            raise
        said = None
    return Example(text, pair, said, source)


def _texts(layout: _Layout) -> str:
    return " and ".join(repr(name) for name in layout[:2] if name)
