"""Labelled examples of one text or two: from .tsv, .csv and .jsonl files, and from Python lists.

GLUE's original files need no column names: their layouts are recognised from the header, and CoLA's, which has none,
from its first row. So are the usual names (`_LAYOUTS` and `_LABELS` below); other names are given as `Columns`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie import storage
from bertie.errors import UsageError, UserError

# (text, second text, label names of that layout only), in lower case; None: one text
_LAYOUTS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    ("#1 string", "#2 string", ("quality",)),  # MRPC
    ("question1", "question2", ("is_duplicate",)),  # QQP
    ("question", "sentence", ()),  # QNLI
    ("sentence1", "sentence2", ()),  # RTE, WNLI, MNLI, STS-B
    ("premise", "hypothesis", ()),
    ("text_a", "text_b", ()),
    ("text", "text_pair", ()),
    ("sentence", None, ()),  # SST-2, CoLA
    ("text", None, ()),
)
_LABELS = ("label", "gold_label", "class")
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
class Columns:
    """Which columns of a .tsv or .csv file, or keys of a .jsonl file, hold what. Empty: found from the names."""

    text: str = ""
    """Column of the text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs (empty: found from the header)."""
    label: str = ""
    """Column of the label (empty: found from the header)."""


class _Layout(NamedTuple):
    text: str
    text_pair: str | None
    label: str | None


class _Row(NamedTuple):
    values: dict[str, Any]
    source: str
    place: str  # the same with the whole path, for errors


def read_examples(path: Path, columns: Columns = Columns()) -> list[Example]:
    """All examples of a file, for training and evaluation. Without a label column every label is None.

    Rows whose gold_label is "-" (MNLI, SNLI: the annotators did not agree) are left out. A column of scores, such as
    STS-B's, is not a label unless `columns` names it.
    Errors: UsageError for a missing file, an unknown ending, or columns that cannot be told; UserError for bad content.
    """
    return list(_examples(_rows(path), columns, str(path), labelled=True))


def stream_examples(path: Path, columns: Columns = Columns()) -> Iterator[Example]:
    """The same lazily, for prediction on files of any size: every row gives an example, in order.

    Labels are kept where they are found, but not needed: a label column that `columns` names may be missing, and a
    gold_label of "-" is None.
    """
    return _examples(_rows(path), columns, str(path), labelled=False)


def as_examples(
    rows: Iterable[dict[str, Any] | str | Example],
    columns: Columns = Columns(),
) -> list[Example]:
    """Examples from Python values: dicts ({"text": …, "label": …} or any names above), unlabelled strings, or Examples.

    Every row gives one example; a dict without a label gives label None. Errors as in `read_examples`.
    """
    found = (_value_row(row, columns, f"example {number}") for number, row in enumerate(several(rows), 1))
    return list(_examples(found, columns, "the examples", labelled=False))


def several(texts: Any) -> Any:
    """A string is iterable too, and a dict: its characters or keys would each be taken for a text."""
    if isinstance(texts, str | bytes | dict | Path) or not isinstance(texts, Iterable):
        raise UsageError(f"expected a list of texts and got one {type(texts).__name__}: put it in brackets")
    return texts


def _value_row(row: Any, columns: Columns, place: str) -> _Row | Example:
    if isinstance(row, Example):
        return row
    if not isinstance(row, dict | str):
        raise UserError(f"{place}: expected a dict, a string or an Example, got {type(row).__name__}")
    return _Row(row if isinstance(row, dict) else {columns.text or "text": row}, place, place)


def _examples(rows: Iterator[_Row | Example], columns: Columns, where: str, labelled: bool) -> Iterator[Example]:
    layouts: dict[tuple[str, ...], _Layout] = {}
    empty = True
    for row in rows:
        empty = False
        if isinstance(row, Example):
            yield row
            continue
        names = tuple(name for name, value in row.values.items() if value is not None)
        if names not in layouts:
            layouts[names] = _next_layout(names, list(layouts.values()), columns, where, row.place, labelled)
        example = _example(row, layouts[names])
        if example.label != _NO_AGREEMENT or layouts[names].label != "gold_label":
            yield example
        elif not labelled:
            yield replace(example, label=None)
    if empty:
        raise UserError(f"{where}: no examples in it")


def _next_layout(
    names: tuple[str, ...], before: list[_Layout], columns: Columns, where: str, place: str, labelled: bool
) -> _Layout:
    """The layout of a row that names other columns than the rows before: it may only add or lose the label."""
    try:
        layout = _layout(names, columns, where, labelled and not before)
    except UsageError as error:
        if not before:
            raise
        raise UserError(str(error).replace(where, place, 1)) from error
    if before and layout[:2] != before[0][:2]:
        raise UserError(f"{place}: found {_texts(layout)}, but {_texts(before[0])} in the rows before")
    return layout


def _example(row: _Row, layout: _Layout) -> Example:
    values, source, place = row
    return Example(
        text=_string(values[layout.text], layout.text, place),
        text_pair=_string(values[layout.text_pair], layout.text_pair, place) if layout.text_pair else None,
        label=_label(values[layout.label], layout.label, place) if layout.label else None,
        source=source,
    )


def _layout(names: tuple[str, ...], columns: Columns, where: str, labelled: bool) -> _Layout:
    """Which names hold what. Errors: UsageError that lists the names and says which flag chooses among them."""
    known = {name.lower(): name for name in names}
    listing = ", ".join(name if len(name) <= 40 else f"{name[:40]}…" for name in names[:30])

    def refuse(problem: str, flags: str) -> UsageError:
        return UsageError(f"{where}: {problem}; its columns are: {listing}. Choose with {flags}")

    for flag, name in (("--task.text", columns.text), ("--task.text-pair", columns.text_pair)):
        if name and name not in names:
            raise refuse(f"no column {name!r}", flag)
    label_names = _LABELS
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
    if columns.label:
        if labelled and columns.label not in names:
            raise refuse(f"no column {columns.label!r}", "--task.label")
        labels = [columns.label] if columns.label in names else []
    if labelled and len(labels) > 1:
        raise refuse("more than one column could be the label", "--task.label")
    return _Layout(text, pair, labels[0] if len(labels) == 1 else None)


def _texts(layout: _Layout) -> str:
    return " and ".join(repr(name) for name in layout[:2] if name)


def _string(value: Any, name: str, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: {name!r} must be a string, found {json.dumps(value, default=repr)[:60]}")
    if not storage.is_unicode(value):
        raise UserError(f"{place}: {name!r} holds half of a surrogate pair, which is no character")
    return value


def _label(value: Any, name: str, place: str) -> str | None:
    """A label as a string: numbers and true/false as JSON writes them; an empty one is None."""
    if isinstance(value, int | float):
        return json.dumps(value)
    return _string(value, name, place).strip() or None


def _rows(path: Path) -> Iterator[_Row]:
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl}
    if path.suffix not in readers:
        raise UsageError(f"{path}: examples are read from {', '.join(readers)} files")
    if not path.is_file():
        raise UsageError(f"no such file: {path}")
    return readers[path.suffix](path)


def _lines(path: Path) -> Iterator[str]:
    """Lines with their ends. Only "\\n" ends a line: U+2028 and its like are text."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{path}:{number}: not UTF-8 text; convert the file to UTF-8 first") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _jsonl(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not valid JSON: {error}") from error
        if not isinstance(values, dict):
            raise UserError(f'{path}:{number}: expected a JSON object, as in {{"text": …, "label": …}}')
        yield _Row(values, f"{path.name}:{number}", f"{path}:{number}")


def _tsv(path: Path) -> Iterator[_Row]:
    """Tabs separate, nothing quotes: a lone " is text."""
    cells = ((number, line.rstrip("\r\n").split("\t")) for number, line in enumerate(_lines(path), 1) if line.strip())
    return _table(path, cells, headless=_COLA)


def _csv(path: Path) -> Iterator[_Row]:
    return _table(path, _csv_cells(path), headless=None)


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(2**31 - 1)  # the module's only limit is global, and shorter than a long article
    reader = csv.reader(_lines(path), strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{start}: not valid CSV: {error}") from error


def _table(path: Path, rows: Iterator[tuple[int, list[str]]], headless: list[str] | None) -> Iterator[_Row]:
    """Rows as dicts by the names in the first; by the names of `headless` where the first is plainly a row of CoLA."""
    header: list[str] = []
    for number, cells in rows:
        if not header:
            is_cola = len(cells) == 4 and cells[1] in ("0", "1") and not cells[2].strip("*?")
            header = headless if headless and is_cola else [name.strip() for name in cells]
            twice = {name for name in header if name and header.count(name) > 1}
            if twice:
                raise UserError(f"{path}: two columns are named {min(twice)!r}")
            if header is not headless:
                continue
        if len(cells) != len(header):
            raise UserError(f"{path}:{number}: {len(cells)} columns, but the first line has {len(header)}")
        yield _Row(dict(zip(header, cells, strict=True)), f"{path.name}:{number}", f"{path}:{number}")
    if not header:
        raise UserError(f"{path} is empty")
