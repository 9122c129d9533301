"""The separator of cells in a .csv file: a comma, or another one that Excel and others write, where this is certain."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import chain, islice

from bertie.base import console
from bertie.base.errors import UserError
from bertie.files.lines import Line

_NAMES = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_STATED = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE | re.DOTALL)
"""Excel's own first line."""
_LINES, _CHARACTERS = 100, 1 << 20  # at the start of a file that decide


def find_delimiter(name: str, decoded: Iterator[Line]) -> tuple[str, Iterator[Line]]:
    """Return what separates cells, and the lines of the table.

    A comma, unless the first line says `sep=;`, or it has no comma between cells, and one of the others splits it and most of
    the first rows into the same number of cells. It is then said.

    Args:
        name: The file, for messages.
        decoded: The lines of the file.

    Raises:
        UserError: It is not certain.
    """
    lines = list(islice(decoded, 1))
    header = lines[0][1] if lines else ""
    if not isinstance(header, str) or not any(delimiter in header for delimiter in ("=", ";", "\t", "|")):
        return ",", chain(lines, decoded)
    if stated := _STATED.fullmatch(header):
        if stated[1] not in _NAMES:
            raise UserError(f"{name}:1: {header.strip()!r} is not a separator of cells that bertie reads: use a comma")
        console.info_once(f"{name}: cells are separated by {_NAMES[stated[1]]}, as its first line says")
        return stated[1], decoded
    if _widths([header], ",") != [1]:
        return ",", chain(lines, decoded)
    size = 0
    for line in islice(decoded, _LINES):
        lines.append(line)
        size += len(line[1]) if isinstance(line[1], str) else 0
        if size > _CHARACTERS:
            break
    texts = [line for _, line in lines if isinstance(line, str)]
    widths = {delimiter: _widths(texts, delimiter) for delimiter in _NAMES if delimiter in header}
    fitting = [
        delimiter
        for delimiter, (first, *rows) in widths.items()
        if first > 1 and 2 * rows.count(first) >= len(rows) + bool(rows)
    ]
    if not fitting and (not widths or {*_widths(texts, ",")} == {1}):  # one column with such a name
        return ",", chain(lines, decoded)
    if len(fitting) != 1:
        between = " or ".join(_NAMES[delimiter] for delimiter in fitting or widths)
        problem = (
            f"{name}: cells seem to be separated by {between}, but not all rows have as many cells as the first line"
        )
        raise UserError(
            problem, "Separate cells by commas and quote those with a comma, or write a .tsv or .jsonl file"
        )
    console.info_once(f"{name}: cells are separated by {_NAMES[fitting[0]]}")
    return fitting[0], chain(lines, decoded)


def _widths(lines: list[str], delimiter: str) -> list[int]:
    """Return the number of cells of each row, up to the first one that is not CSV. The first one is the header's."""
    widths: list[int] = []
    try:
        for cells in csv.reader(lines, delimiter=delimiter, strict=True):
            names = len({cell.strip() for cell in cells} - {""}) > 1
            if cells:
                widths.append(len(cells) if widths or names else 1)
    except csv.Error:  # also a row that goes on behind the lines
        pass
    return widths or [1]
