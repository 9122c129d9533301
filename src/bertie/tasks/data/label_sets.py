"""Examples of one or two texts and any number of labels: lists, cells with a separator, or one column of 0 and 1 per label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import tee
from pathlib import Path
from typing import Any, Literal

from bertie import console
from bertie.errors import UsageError, UserError, join_names, raise_error, shorten
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.left_out import leave_out, raise_mistake
from bertie.tasks.data.rows import Row, file_format, parse_label
from bertie.tasks.data.texts import Example, TextReader
from bertie.tasks.data.unknown_labels import find_markers, require_stated, without_unknown

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
Form = tuple[Literal["cell", "columns"], tuple[str, ...]]
"""Where the labels of a row are: in the cell of one column, or in a column of 0 and 1 for each label."""
Forms = dict[tuple[str, ...], Form | None]
"""The form of the rows with the latest columns, and under () that of the first row."""


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

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,) if self.text_pair is None else (self.text, self.text_pair)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.labels

    def named(self, names: dict[str, str]) -> LabelSetExample:
        labels = self.labels and tuple(dict.fromkeys(names.get(label, label) for label in self.labels))
        return replace(self, labels=labels)


@dataclass(frozen=True)
class LabelSetReader:
    """Reads examples of one or two texts and any number of labels.

    An empty list and an empty cell say that a text has no label. null, NaN and a missing key say that the labels are
    unknown.

    Attributes:
        texts: Reads the texts.
        label: The column of the labels; empty: one of `NAMES`, or else one column of 0 and 1 for each label.
        separator: What stands between the labels of a cell. `ONE`: a cell is one label. Empty: found if the data leave no
            doubt.
        classes: All labels, if they are known.
        no_label: The labels that mean that those of a text are unknown. Empty: see `unknown_labels`.
    """

    texts: TextReader
    label: str = ""
    separator: str = ""
    classes: tuple[str, ...] = ()
    no_label: tuple[str, ...] = ()
    usual: str = ""
    """The separator in the training examples, for files that leave a doubt."""
    found: dict[str, str] = field(default_factory=dict, compare=False, repr=False)
    """The separator in the file that was read last, under "separator", if there is one, and it is certain."""

    def read(self, path: Path) -> Iterator[LabelSetExample | UserError]:
        """Read examples with labels.

        Raises:
            UsageError: The file is missing, a .txt file or of unknown format; its columns are unclear; or a cell could be
                one label or several.
        """
        if file_format(path) == "txt":
            raise UsageError(f"{path}: a line is a text, without labels, in .txt: give a .tsv, .csv or .jsonl")
        return self._labeled(lambda: self.texts.rows(path, labeled=False), str(path))

    def _labeled(self, rows: Callable[[], Iterator[Any]], where: str) -> Iterator[LabelSetExample | UserError]:
        """Convert rows with labels, wherever they are from."""

        def kept() -> Iterator[Any]:
            return leave_out(rows(), (self.texts.text, self.texts.text_pair, self.label))

        for example in self._examples(kept(), where, self.separator or self._separator(kept(), where)):
            if isinstance(example, LabelSetExample) and example.labels is None:
                problem = f"{example.source}: its labels are unknown; name their column with --task.label"
                yield UserError(f"{problem} (an empty list or cell says that there is none)")
            else:
                yield example

    def stream(self, path: Path) -> Iterator[LabelSetExample | UserError]:
        """Read examples for prediction, lazily: every row gives an example or an error, in order. Labels are not read."""
        for example in self.texts.stream(path):
            yield example if isinstance(example, UserError) else _without_labels(example)

    def markers(self, labels: Collection[str], where: str) -> set[str]:
        """Return which labels mean that the labels are unknown: see `LeavesOut`."""
        return find_markers(labels, where, self.classes, self.no_label)

    def labeled(self, examples: list[LabelSetExample], where: str, training: bool = False) -> list[LabelSetExample]:
        """Return the examples whose labels are known: see `LeavesOut`."""
        labels = {label for example in examples for label in example.labels or ()}
        if training:
            require_stated(labels, where, self.no_label)
        markers = self.markers(labels, where)
        for example in examples:
            if len(example.labels or ()) > 1 and (unknown := markers.intersection(example.labels or ())):
                problem = f"{example.source}: the label {min(unknown)!r} means that the labels are unknown"
                raise UserError(f"{problem}, and stands beside others")
        only = [example.labels[0] if example.labels and len(example.labels) == 1 else None for example in examples]
        return without_unknown(examples, only, markers, where)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: those of its first row that can be read."""
        rows = self.texts.rows(path, labeled=False)
        if (names := next((tuple(row.values) for row in rows if isinstance(row, Row)), None)) is None:
            return {}
        form = self._form(names, str(path))
        return {**self.texts.columns(path), **({"labels": ", ".join(form[1])} if form else {})}

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Convert dicts ({"text": …, "labels": […]}), strings, pairs of strings, or `LabelSetExample`s.

        labeled: as `read`, or else lazily and as `stream`.

        Raises:
            UsageError: The columns are unclear.
            UserError: For the first bad value.
        """
        rows = self.texts.value_rows(given, LabelSetExample)
        if labeled:
            kept = list(rows)
            yield from map(raise_mistake, self._labeled(lambda: iter(kept), "the examples"))
        else:
            yield from map(_without_labels, map(raise_error, self.texts.examples(rows, "the examples", labeled=False)))

    def _examples(self, rows: Iterator[Any], where: str, separator: str) -> Iterator[LabelSetExample | UserError]:
        forms: Forms = {}
        rows, same = tee(rows)
        for row, example in zip(same, self.texts.examples(rows, where, labeled=False), strict=True):
            if isinstance(example, UserError | LabelSetExample):
                yield example
                continue
            labels = None
            if isinstance(row, Row):
                names = tuple(row.values)
                if names not in forms:
                    form = self._form(names, where)
                    first = forms.get(()) or form
                    self._require_same(form, first, row.place)
                    forms.clear()  # rows with the same columns follow each other
                    forms |= {(): first, names: form}
                try:
                    labels = self._labels(row, forms[names], separator)
                except UsageError:
                    raise
                except UserError as error:
                    yield error
                    continue
            yield LabelSetExample(example.text, example.text_pair, labels, example.source)

    def _form(self, names: tuple[str, ...], where: str) -> Form | None:
        """Find where the labels are. None: the row has no labels. Raises UsageError if two columns could have them."""
        text, pair, _ = self.texts.find_layout(names, where, labeled=False)
        others = tuple(name for name in names if name not in (text, pair))
        named = tuple(name for name in self.classes if name in others)
        if self.label or not named:
            cells = [name for name in others if (name == self.label if self.label else name.lower() in NAMES)]
            if len(cells) > 1:
                raise UsageError(f"{where}: more than one column could be the labels; choose with --task.label")
            if cells or self.label:
                return ("cell", (cells[0],)) if cells else None
        columns = named or tuple(name for name in others if not _ROW_ID.fullmatch(name) and not self.classes)
        if unclear := [name for name in columns if name.lower() in _PARTS and not named]:
            problem = f"{where}: the column {unclear[0]!r} could be a label"
            raise UsageError(problem, "Name the columns of labels with --task.labels")
        if columns and not named:
            console.info_once(f"{where}: each of these columns is a label: {join_names(columns)}")
        return ("columns", columns) if columns else None

    def _require_same(self, form: Form | None, first: Form | None, place: str) -> None:
        """Raise UsageError if a row has its labels elsewhere than the first one, unless it is known which labels there are."""
        if form is None or first is None or self.classes or (form[0], {*form[1]}) == (first[0], {*first[1]}):
            return
        remedy = "Name the column of the labels with --task.label, or the columns of 0 and 1 with --task.labels"
        raise UsageError(f"{place}: its labels are in other columns than those of the rows before", remedy)

    def _labels(self, row: Row, form: Form | None, separator: str) -> tuple[str, ...] | None:
        if form is None:
            return None
        kind, columns = form
        if kind == "cell":
            return parse_labels(row.values[columns[0]], columns[0], row.place, separator, self.classes)
        if self.classes and (missing := [name for name in self.classes if name not in columns]):
            raise UserError(f"{row.place}: no column {missing[0]!r}, though other labels have one")
        return tuple(name for name in columns if self._is_set(row, name))

    def _is_set(self, row: Row, name: str) -> bool:
        value = parse_label(row.values[name], name, row.place)
        if (number := (value or "").lower()) in (*_TRUE, *_FALSE):
            return number in _TRUE
        found = "an empty cell" if value is None else repr(shorten(value))
        problem = f"{row.place}: the column {name!r} has {found}, and a label has 0 or 1"
        if self.classes:
            raise UserError(problem)
        remedy = "Name the column of the labels with --task.label, or the columns of 0 and 1 with --task.labels"
        raise UsageError(problem, remedy)  # of the file: it may be no label at all

    def _separator(self, rows: Iterator[Any], where: str) -> str:
        """Return the separator of the rows' cells, or `ONE`. Reads all rows if the labels are strings."""
        cells: dict[str, str] = {}
        forms: Forms = {}
        for row in rows:
            if isinstance(row, Row):
                names = tuple(row.values)
                if names not in forms:
                    forms = {names: self._form(names, where)}  # rows with the same columns follow each other
                form = forms[names]
                if form is None or form[0] == "columns":
                    continue
                value = row.values[form[1][0]]
                if isinstance(value, str) and not (is_written(value) and value not in self.classes):
                    cells.setdefault(value.strip(), row.place)
        try:
            found = find_separator(cells, self.classes)
        except UsageError:
            if not self.usual:
                raise
            console.info(f"{where}: {self.usual!r} stands between labels, as in the training examples")
            return self.usual
        if found != ONE:
            self.found["separator"] = found
        return found


def _without_labels(example: Example | LabelSetExample) -> LabelSetExample:
    return LabelSetExample(example.text, example.text_pair, None, example.source)


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
    for label, place in [(part.strip(), place) for own, place in parts for part in own]:
        for separator in {c for c in label if not (c.isalnum() or c in _IN_NAMES)} if label not in known else ():
            if not alone.isdisjoint(part.strip() for part in label.split(separator) if part.strip()):
                raise _doubt(label, place, separator)
    return used[0] if used else ONE


def _doubt(cell: str, place: str, separator: str) -> UsageError:
    return UsageError(
        f"{place}: {shorten(cell)!r} could be one label or several",
        f"Say so with --task.separator '{separator}', or --task.separator {ONE} if a cell is one label",
    )


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
        UserError: A label is empty or there twice, the value has another type, or it could be one label or several.
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
            found = separator or find_separator({cell: place}, known)
            if found == ONE and cell.isascii():
                return (cell,)
            value = [cell] if found == ONE or cell in known else cell.split(found)
    if not isinstance(value, list | tuple):
        single = parse_label(value, name, place)
        return None if single is None else (single,)
    labels = tuple(parse_label(item, name, place) for item in value)
    if None in labels:
        raise UserError(f"{place}: a label in {name!r} is empty")
    if len(set(labels)) < len(labels) and {str(label) for label in labels} <= {*_TRUE, *_FALSE}:
        problem = f"{place}: {name!r} has 0 or 1 for each label, {shorten(str(value))}"
        raise UsageError(
            problem, "Write the names of the labels that a text has, or a column of 0 and 1 for each label"
        )
    if len(set(labels)) < len(labels):
        [(twice, _)] = Counter(labels).most_common(1)
        raise UserError(f"{place}: the label {shorten(str(twice))!r} is there twice")
    return tuple(str(label) for label in labels)
