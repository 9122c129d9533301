"""Examples of one or two texts and a label.

GLUE's original files need no column names: their layouts are recognized from the header, and CoLA's, which has none,
from its first row. So are common names (`_LAYOUTS`, `CLASSES` and `SCORES`). `Texts` can be told other columns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import console
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.in_memory import require_list
from bertie.examples.labels import MARKERS, LabelRules, among, require_one_type, with_named_label
from bertie.examples.reader import DataFormat, KindFacts, Reader, rows_or_lines
from bertie.examples.rows import (
    PROBED_ROWS,
    Header,
    Row,
    describe_bad_number,
    distinct_columns,
    label_or_none,
    parse_label,
    parse_label_number,
    require_string,
)

CLASSES = ("label", "gold_label", "class", "entailment_judgment")
SCORES = ("score", "relatedness_score", "similarity", "label")
_COLA = ["source", "label", "mark", "sentence"]
_WITH_COMMA = re.compile(r"[-+]?(\d+)(?:,(\d+))?")
_NO_AGREEMENT = "-"  # gold_label in MNLI and SNLI if the annotators did not agree
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
    ("anchor", "positive", ()),
    ("query", "positive", ()),
    ("query", "pos", ()),
    ("query", "document", ()),
    ("query", "passage", ()),
    ("question", "answer", ()),
    ("sentence", None, ()),  # SST-2, CoLA
    ("text", None, ()),
)


@dataclass(frozen=True)
class Example:
    """One or two texts.

    Attributes:
        text: The text.
        text_pair: The second text; None for tasks on one text.
        label: The gold label; None if it is unknown.
        source: The file and line ("dev.tsv:12"), for messages.
        numbers: The gold numbers of a text that has several. Its label is None.
        negatives: Texts that are wrong for the first one.
        scores: A teacher's scores of the second text, and of the negatives.
    """

    text: str
    text_pair: str | None
    label: str | None
    source: str
    numbers: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.numbers or (None if self.label is None else (self.label,))

    named = with_named_label


class TextColumns(NamedTuple):
    """The columns of a row."""

    text: str
    text_pair: str | None
    label: str | None
    names: tuple[str, ...]
    """All columns of the row."""
    numbers: tuple[str, ...] = ()
    """Columns of a number each, instead of a label."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that are wrong for the first one."""

    @property
    def scored(self) -> tuple[str, ...]:
        """The columns of its numbers, or of its label."""
        return self.numbers or tuple(filter(None, [self.label]))

    @property
    def uses(self) -> dict[str, str | None]:
        label = ", ".join(self.numbers) or self.label
        negatives = ", ".join(self.negatives) or None
        return {"text": self.text, "second text": self.text_pair, "negatives": negatives, "label": label}

    def __str__(self) -> str:
        return " and ".join(repr(name) for name in self[:2] if name)


def cola_columns(cells: list[str]) -> list[str] | None:
    """Recognize CoLA's files, which have no header."""
    is_cola = len(cells) == 4 and cells[1] in ("0", "1") and not cells[2].strip("*?")
    return _COLA if is_cola else None


@dataclass(frozen=True)
class LabeledTexts:
    """Examples of one or two texts.

    Attributes:
        text: Column of the text in a table, or key in a .jsonl file. Empty: found from the header.
        text_pair: Column of the second text, for tasks on pairs. Empty: found from the header.
        label: Column of the label. Empty: found from the header.
        label_names: The names that are recognized as the label column.
        numbers: Whether required labels must be numbers (see `parse_label_number`); None: if most of the first labels
            in a file are.
        paired: Whether each example must have two texts; None: as in the first row.
        no_label: The labels that mean that the label is unknown. Empty: see `labels`.
        classes: All classes, if they are known.
        outputs: Names of several numbers, which may be columns; empty: the label may be a list of them. None: it is one label.
        join: Whether labels that look the same are one.
        optional: Whether labeled examples may have no label, as pairs that are all positive.
        decimal_comma: Whether numbers have a comma before their fraction, as all in a file show.
    """

    text: str = ""
    text_pair: str = ""
    label: str = ""
    label_names: tuple[str, ...] = CLASSES
    numbers: bool | None = False
    paired: bool | None = None
    no_label: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    outputs: tuple[str, ...] | None = None
    join: bool = False
    optional: bool = False
    decimal_comma: bool = False
    facts, data_format, rows = KindFacts((Example,), headerless=cola_columns), DataFormat(), rows_or_lines

    __post_init__ = distinct_columns("text", "text_pair", "label")

    @property
    def label_rules(self) -> LabelRules:
        return LabelRules(self.classes, self.no_label, self.numbers, join=self.join)

    def from_python(self, value: Any, place: str, source: str) -> Example:
        """Return the example of a text, or of a pair of texts."""
        if isinstance(value, str):
            self._require_number(TextColumns("text", None, None, ()), f"{place}: ")
            return Example(require_string(value, "text", place), None, None, source)
        if not isinstance(value, tuple | list):
            raise UserError(f"{place}: expected a dict, a string, a pair or an Example, got {type(value).__name__}")
        if len(value) != 2:
            raise UsageError(f"{place}: a pair has two texts and this one has {len(value)}: {str(value)[:60]}")
        text, pair = (
            require_string(part, name, place) for part, name in zip(value, ("text", "text_pair"), strict=True)
        )
        return Example(text, pair, None, source)

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> LabeledTexts:
        """Find out whether labels are scores, if they may be, and whether all scores have decimal commas."""
        if self.numbers is False or not labeled:
            return self
        every = list(rows)
        if (has_commas := self._has_decimal_commas(every, path)) or self.numbers:
            return replace(self, decimal_comma=has_commas, numbers=True)
        labels, name, first_text = list[str](), "", ""
        for row in every[:PROBED_ROWS]:
            with suppress(UserError):
                if isinstance(row, Row) and (columns := self.columns(row, labeled)).label:
                    name, first_text = columns.label, columns.text
                    labels += filter(None, [parse_label(row.values[name], name, row.place)])
        certain = sorted({label for label in labels if label.lower() not in MARKERS})
        classes = len(certain) > 2 or (certain and first_text.lower() == "premise")  # 0 for the most similar pairs
        whole = all(label.removesuffix(".0").isdecimal() for label in certain)
        if name.lower() in CLASSES and not self.label and classes and whole:
            problem = f"the numbers of {name!r} could be classes or scores: {join_names(certain[:5])}"
            remedy = f"If a larger number means more similar texts, set --task.label {name}"
            raise UsageError(f"{path or 'the examples'}: {problem}", remedy)
        return replace(self, numbers=2 * sum(map(_is_number, labels)) >= len(labels) > 0)

    def _has_decimal_commas(self, rows: list[Any], path: Path | None) -> bool:
        """Return whether all numbers are written as 1,5.

        Raises:
            UsageError: They could also be thousands, as 1,500, or most have a comma and others have another form.
        """
        cells = list[str]()
        for row in (row for row in rows if isinstance(row, Row)):
            with suppress(UserError):
                columns = self.columns(row, labeled=True)
                cells += filter(None, [parse_label(row.values[name], name, row.place) for name in columns.scored])
        if not any("," in cell for cell in cells):
            return False
        unknown = among(cells, self.no_label) | {cell for cell in cells if cell.lower() in MARKERS}
        found = [(cell, _WITH_COMMA.fullmatch(cell)) for cell in cells if cell not in unknown]
        commas = [number for _, number in found if number and number[2]]
        odd = [cell for cell, number in found if not number]
        where, problem = path or "the examples", ""
        if odd and len(commas) > len(odd):
            problem = f"{where}: its numbers have decimal commas, but {shorten(odd[0])!r} has another form"
        elif commas and all(len(number[2]) == 3 and len(number[1]) < 4 and number[1] != "0" for number in commas):
            problem = f"{where}: a comma in its numbers could be decimal, or separate thousands, as in {commas[0][0]!r}"
        if problem:
            raise UsageError(problem, "Write all numbers with a point, or no comma")
        if commas and not odd:
            console.info_once(f"{where}: its numbers have decimal commas")
        return bool(commas and not odd)

    def columns(self, row: Row, labeled: bool) -> TextColumns:
        return _find_columns(self, Header(row.values), labeled)

    def to_example(self, row: Row, columns: TextColumns, labeled: bool, seen: dict[Any, Any]) -> Example:
        values, source, place = row = row if not self.decimal_comma else _with_points(row, columns)
        text = require_string(values[columns.text], columns.text, place)
        pair = require_string(values[columns.text_pair], columns.text_pair, place) if columns.text_pair else None
        if (first := seen.get("columns")) is None:
            self._require_text(text, columns, place)
            seen["columns"] = columns
        elif columns is not first and columns[:2] != first[:2]:
            raise UserError(f"{place}: found {columns}, but {first} in the rows before")
        if self.outputs is not None and (numbers := label_or_none(lambda: _numbers(row, columns), labeled)):
            seen["label"] = columns.label
            return Example(text, pair, None, source, numbers)
        if (name := columns.label) is None:
            if labeled and "label" in seen:  # of a task whose examples may have none
                raise UserError(f"{place}: no label")
            return Example(text, pair, None, source)
        cell = values[name]
        if not labeled:
            label = label_or_none(lambda: parse_label(cell, name, place), strict=False)
            return Example(text, pair, None if (name, label) == ("gold_label", _NO_AGREEMENT) else label, source)
        seen["label"] = name
        if isinstance(cell, list) or is_written(cell):
            cell = _only_label(cell, name, place, seen)
        if (label := parse_label(cell, name, place)) is None:
            raise UserError(f"{place}: no label")
        if self.numbers is False:
            require_one_type(seen, cell, place)
        elif self.numbers and not _is_number(label) and not among([label], self.no_label):
            raise UserError(f"{place}: the label is {describe_bad_number(label)}")
        return Example(text, pair, label, source)

    def _require_text(self, text: str, columns: TextColumns, place: str) -> None:
        """Raise a UsageError if the first text is a list that a program wrote, unless the caller named the column."""
        if self.text or not is_written(text):
            return
        written = None
        with suppress(UserError):
            written = parse_cell(text, columns.text, place)
        if isinstance(written, list):
            problem = f"{place}: {columns.text!r} is a list that was written as text, {shorten(text)}"
            raise UsageError(problem, f"Join its words; if it is a text, set --task.text {columns.text}")

    def _require_number(self, columns: TextColumns, place: str = "") -> None:
        """Raise a UsageError if a row has one text and the training examples two, or the other way round."""
        if self.paired is not None and self.paired != (columns.text_pair is not None):
            problem = f"{place}found {columns}, but the task reads {'two texts' if self.paired else 'one text'}"
            flags = ("text", "text-pair") if self.paired else ("text",)
            raise Header(columns.names).unclear(problem, *flags) if columns.names else UsageError(problem)


def _is_number(label: str) -> bool:
    return parse_label_number(label) is not None


def _with_points(row: Row, columns: TextColumns) -> Row:
    """Return a row whose numbers have decimal points instead of commas."""
    cells = {name: row.values[name] for name in columns.scored}
    points = {name: cell.replace(",", ".") for name, cell in cells.items() if isinstance(cell, str)}
    return row._replace(values=row.values | points)


def _numbers(row: Row, columns: TextColumns) -> tuple[str, ...]:
    """Return the several numbers of a row. Empty: it has one label, or none. Raises UserError if one is missing or none."""
    name = columns.label or ""
    cells = [row.values[name] for name in columns.numbers] or row.values.get(name)
    listed = parse_cell(cells, name, row.place) if is_written(cells) else cells
    if not isinstance(listed, list) or len(listed) < (1 if columns.numbers else 2):
        return ()
    numbers = [parse_label(item, name, row.place) for item in listed]
    if wrong := [number for number in numbers if number is None or not _is_number(number)]:
        what = "missing" if wrong[0] is None else describe_bad_number(wrong[0])
        raise UserError(f"{row.place}: number {numbers.index(wrong[0]) + 1} of {len(numbers)} is {what}")
    return tuple(map(str, numbers))


def _only_label(cell: Any, name: str, place: str, seen: dict[Any, Any]) -> Any:
    """Return the label in a list of one, and None for an empty list. A text with a bracket at its end may be no list.

    Raises:
        UserError: It has several labels. UsageError: It has, and another row has a list of one, or the other way round.
    """
    listed = cell
    if isinstance(cell, str):
        with suppress(UserError):
            listed = parse_cell(cell, name, place)
    if not isinstance(listed, list) or not listed:
        return cell if listed else None
    seen.setdefault(("a list of several", several := len(listed) > 1), place)
    if other := seen.get(("a list of several", not several)):
        with_several, with_one = (place, other) if several else (other, place)
        problem = f"{with_several}: {name!r} is a list of several labels, but {with_one} has one label"
        raise UsageError(problem, "multi_label learns several; leave out or split such rows to learn one")
    if several:
        problem = f"the label is a list, {shorten(str(cell))}, but this task has one label per text"
        raise UserError(f"{place}: {problem}: multi_label learns several")
    console.info_once(f"{name!r} is a list of one label in each row")
    return listed[0]


def _find_columns(kind: LabeledTexts, names: Header, labeled: bool) -> TextColumns:
    """Find the columns of a row with these names. labeled: whether the column of the label must be clear, if there is one."""
    known = {name.lower(): name for name in names}
    known |= {name: "" for name, count in Counter(map(str.lower, names)).items() if count > 1}  # Text beside text

    names.require("text", kind.text)
    names.require("text-pair", kind.text_pair)
    label_names, needs_label = kind.label_names, labeled and not kind.optional and bool(kind.label_names)
    if kind.text:
        text, pair = kind.text, kind.text_pair or None
    elif kind.text_pair:
        raise names.unclear("--task.text-pair without --task.text", "text")
    else:
        layouts = [entry for entry in _LAYOUTS if entry[0] in known and (entry[1] is None or entry[1] in known)]
        if paired := [entry for entry in layouts if entry[1]]:  # one column of a pair is not a layout by itself
            used = {name for entry in paired for name in entry[:2]}
            layouts = [entry for entry in layouts if entry[1] or entry[0] not in used]
        if len(layouts) != 1:
            problem = "more than one column could be" if layouts else "cannot tell which column is"
            flags = ["text", *["text-pair"] * bool(kind.paired)]
            flags += ["label"] * (needs_label and not kind.label and known.keys().isdisjoint(label_names))
            flags[-1] += " (of pairs also --task.text-pair)" * (kind.paired is None)
            raise names.unclear(f"{problem} the text", *flags)
        [(text_name, pair_name, own_labels)] = layouts
        text, pair = known[text_name], known[pair_name] if pair_name else None
        if not text or pair == "":
            raise names.unclear("two columns have the name of the text, in capitals or not", "text")
        label_names += own_labels
    labels = [known[name] for name in label_names if name in known and known[name] not in (text, pair)]
    if kind.label:
        if kind.label in (text, pair):
            raise names.unclear(f"{kind.label!r} is the text, so it cannot be the label", "text", "label")
        if labeled:
            names.require("label", kind.label)
        labels = [kind.label] if kind.label in names else []
    if labeled and (len(labels) > 1 or "" in labels):
        raise names.unclear("more than one column could be the label", "label")
    numbers = () if kind.label else tuple(name for name in kind.outputs or () if name in names)
    if labeled and numbers:
        names.require("labels", *(kind.outputs or ()))
    if needs_label and not labels and not numbers:
        raise names.unclear("no label column", "label")
    label = labels[0] if len(labels) == 1 and labels[0] and not numbers else None
    columns = TextColumns(text, pair, label, names, numbers if numbers == kind.outputs else ())
    kind._require_number(columns)
    return columns


def pairs_of(pairs: Iterable[Any]) -> list[Any]:
    """Return pairs of texts in memory: of rows, such as dicts and frames; other values as they are.

    Raises UsageError if the columns are unclear, and UserError if a row has no two texts.
    """
    values = list(require_list(pairs))
    if not any(isinstance(value, dict) for value in values):
        return values
    return [(each.text, each.text_pair) for each in Reader(LabeledTexts(label_names=(), paired=True)).values(values)]
