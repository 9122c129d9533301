"""Records of .jsonl, .csv, .tsv, .parquet and .txt files, as dicts by column.

A record that cannot be read is replaced by a `BadRecord`; what is wrong with a whole file is raised. Text preparation
counts bad records, tasks report each one.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import IO, Any

from bertie.base import console
from bertie.base.errors import UserError
from bertie.base.untrusted import RepeatedKeyError, parse_json
from bertie.files import lines
from bertie.files.delimiters import find_delimiter
from bertie.files.encodings import UTF8, Encoding
from bertie.files.lines import NUL_BYTE, BadRecord, Line, decode_lines, require_line_feeds, undecodable
from bertie.files.sources import Format

PARQUET_ROWS = 256  # rows of a .parquet file that are in memory at a time

Record = tuple[int, dict[str, Any] | BadRecord]
"""The number of a record's first line (.parquet: of the row), from 1, and its values by column."""
NamesOfHeaderless = Callable[[list[str]], list[str] | None]
"""Receives the cells of a table's first row. Returns the column names if that row is data, None if it is the header."""
_QUOTED_LINES = 1000  # of a .tsv file, from the first with a quote, that say whether its cells are in quotes
_CELL = re.compile(r'("(?:[^"]|"")*"|[^"\t\r\n]*)(?:\t|\r?\n|$)')
_EXPECTED_OBJECT = 'expected a JSON object, as in {"text": …}, found '
_Cells = tuple[int, list[str] | BadRecord]


class NoHeaderError(UserError):
    """A table without any line, and so without column names."""


def read_records(
    format: Format,
    name: str,
    stream: IO[bytes],
    encoding: Encoding = UTF8,
    fields: tuple[str, ...] = (),
    title: str | None = None,
    headerless: NamesOfHeaderless | None = None,
) -> Iterator[Record]:
    """Yield the records of a file, lazily and in order.

    Args:
        format: The format of the file. "txt" has one record per line, with the key "text".
        name: The file, for error messages.
        stream: The decompressed bytes of the file; for "parquet" it must be seekable.
        encoding: The encoding of the file. "parquet" does not use it.
        fields: The only columns that the caller uses; () for all. Tables must have one of them at least. Other columns are
            not checked.
        title: Another one, which a table may lack.
        headerless: Recognizes tables without a header; see `NamesOfHeaderless`.

    Raises:
        NoHeaderError: for an empty .csv or .tsv file.
        UserError: for a truncated or damaged file, or one without a usable header.
    """
    if format == "parquet":
        return _parse_parquet(name, stream, fields, title)
    decoded = decode_lines(name, stream, encoding, keep_undecodable=format == "csv")
    decoded = require_line_feeds(name, decoded, may_be_one_line=format in ("txt", "jsonl"))
    if format == "jsonl":
        return _parse_jsonl(decoded)
    if format == "txt":
        return _parse_txt(decoded)
    if format == "csv":
        return _parse_table(name, _split_csv(name, decoded), fields, title, headerless, encoding)
    return _parse_table(name, _split_tsv(name, decoded), fields, title, headerless)


def _parse_txt(decoded: Iterator[Line]) -> Iterator[Record]:
    for number, line in decoded:
        yield number, line if isinstance(line, BadRecord) else {"text": line.rstrip("\r\n")}


def _parse_jsonl(decoded: Iterator[Line]) -> Iterator[Record]:
    for number, line in decoded:
        if isinstance(line, BadRecord):
            yield number, line
            continue
        if not line or line.isspace():
            continue
        try:
            value = parse_json(line.rstrip("\r\n"))
        except RepeatedKeyError as error:
            yield number, BadRecord("a key twice", str(error))
            continue
        except (ValueError, RecursionError) as error:
            yield number, BadRecord("not JSON", f"not valid JSON: {error}")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            yield number, BadRecord("not a JSON object", _EXPECTED_OBJECT + type(value).__name__)


def _split_tsv(name: str, decoded: Iterator[Line]) -> Iterator[_Cells]:
    """Split lines at tabs. Nothing quotes: a lone " is text, unless the table `is_quoted`. An empty line is not a row."""
    for number, line in decoded:
        if isinstance(line, str) and '"' in line:
            first = [(number, line), *islice(decoded, _QUOTED_LINES)]
            start = "".join(line for _, line in first if isinstance(line, str))
            if is_quoted(start, len(first) <= _QUOTED_LINES, has_header=number == 1):
                console.info_once(f"{name}: cells are in quotes, as pandas writes them")
                yield from _split_quoted(chain(first, decoded), "\t")
                return
            yield from filter(None, map(_cells, chain(first, decoded)))
            return
        yield from filter(None, [_cells((number, line))])


def _cells(line: Line) -> _Cells | None:
    """Return a line split at tabs; None for an empty one."""
    number, text = line
    if isinstance(text, BadRecord):
        return number, text
    return (number, text.rstrip("\r\n").split("\t")) if text.rstrip("\r\n") else None


def is_quoted(start: str, whole: bool, has_header: bool = True) -> bool:
    """Return whether cells between tabs are in quotes, as pandas writes those with a tab, a line break or a quote.

    Every cell with a quote must begin and end with one and double the quotes inside. And something must prove it: such a pair;
    a header with all names in quotes; or a tab or a line break in quotes, where lines differ in their number of tabs.

    Args:
        start: The lines from the first one with a quote.
        whole: Whether these are all.
        has_header: Whether the first of them is the header.
    """
    first = start.partition("\n")[0].rstrip("\r").split("\t")
    proof = has_header and all(re.fullmatch(r'"[^"]+"', cell) for cell in first)
    marks = ['""'] if len({line.count("\t") for line in start.splitlines() if line}) == 1 else ['""', "\t", "\n"]
    place = 0
    while place < len(start):
        if (cell := _CELL.match(start, place)) is None:
            return proof and not whole and start[place] == '"' and _CELL.match(f'{start[place:]}"') is not None
        proof |= cell[1][:1] == '"' and any(mark in cell[1][1:-1] for mark in marks)
        place = cell.end()
    return proof


def _split_csv(name: str, decoded: Iterator[Line]) -> Iterator[_Cells]:
    delimiter, decoded = find_delimiter(name, decoded)
    yield from _split_quoted(decoded, delimiter)


def _split_quoted(decoded: Iterator[Line], delimiter: str) -> Iterator[_Cells]:
    """Parse CSV with quotes as in RFC 4180. An empty line is not a row. Lines hold undecodable bytes as surrogates."""
    csv.field_size_limit(lines.MAX_RECORD_BYTES)  # the module has this one global limit; an open quote reads up to it
    start = last = 0  # the first and the last line of the row that is being read
    bad_lines: list[tuple[int, BadRecord]] = []

    def good_lines() -> Iterator[str]:
        nonlocal start, last
        for last, line in decoded:
            if isinstance(line, BadRecord):
                bad_lines.append((last, line))
            else:
                start = start or last
                yield line

    reader = csv.reader(good_lines(), delimiter=delimiter, strict=True)
    while True:
        start = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            number, problem = _csv_problem(error, start, last)
            yield number, problem
            continue
        yield from bad_lines
        bad_lines.clear()
        if cells is None:
            return
        if cells:
            yield start, cells


def _csv_problem(error: csv.Error, start: int, last: int) -> tuple[int, BadRecord]:
    count = last - start + 1
    if "new-line character" in str(error):
        detail = "a \\r (carriage return) stands outside quotes: quote the cell, or make all lines end in \\n"
        return last, BadRecord("not CSV", f"not valid CSV: {detail}", count, unsynchronized=True)
    hint = "; is a quote left open?" if "limit" in str(error) or "unexpected end" in str(error) else ""
    following = f" (lost with {console.plural(count - 1, 'line')} after it)" if count > 1 else ""
    return start, BadRecord("not CSV", f"not valid CSV: {error}{hint}{following}", count, unsynchronized=True)


def _parse_table(
    name: str,
    rows: Iterator[_Cells],
    fields: tuple[str, ...],
    title: str | None,
    headerless: NamesOfHeaderless | None,
    unchecked: Encoding | None = None,
) -> Iterator[Record]:
    """Yield rows as dicts by the names in the first row, or by those that `headerless` returns for it.

    unchecked: the encoding of cells that may hold undecodable bytes as surrogates; None if the lines were checked.
    """
    header: list[str] = []
    used: list[tuple[str, int]] = []
    for number, cells in rows:
        if isinstance(cells, BadRecord):
            if not header:
                raise UserError(f"{name}:{number}: {cells.detail}")
            yield number, cells
            continue
        if not header:
            names = headerless(cells) if headerless else None
            header = names or [cell.strip() for cell in cells]
            used = _used_columns(name, header, fields, title)
            if unchecked and (problem := _find_problem("".join(column for column, _ in used), unchecked)):
                raise UserError(f"{name}:{number}: {problem.detail}: convert the file to UTF-8 first")
            if not names:
                continue
        if len(cells) != len(header):
            detail = f"{console.plural(len(cells), 'column')}, but the first line has {len(header)}"
            detail += ": put cells with the separator in double quotes" * (bool(unchecked) and len(cells) > len(header))
            count = 1 + sum(cell.count("\n") for cell in cells)  # an open quote takes the lines after it for one row
            yield number, BadRecord("columns that do not match the first line", detail, count)
            continue
        values = {column: cells[index] for column, index in used}
        if unchecked and (problem := _find_problem("".join(values.values()), unchecked)):
            yield number, problem
        else:
            yield number, values
    if not header:
        raise NoHeaderError(f"{name} is empty")


def _find_problem(text: str, encoding: Encoding) -> BadRecord | None:
    """Return what is wrong with text from `decode_lines(..., keep_undecodable=True)`."""
    if "\x00" in text:
        return NUL_BYTE
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return undecodable(encoding.name.removesuffix("-sig"), ord(text[error.start]) & 0xFF)
    return None


def _used_columns(name: str, header: list[str], fields: tuple[str, ...], title: str | None) -> list[tuple[str, int]]:
    """Return the columns that the caller uses, with their indices. Raises UserError."""
    used = [(column, index) for index, column in enumerate(header) if not fields or column in (*fields, title)]
    if repeated := {column for column, _ in used if column and header.count(column) > 1}:
        raise UserError(f"{name}: two columns are named {min(repeated)!r}")
    if fields:
        require_field(name, header, fields)
    return used


def require_field(name: str, columns: list[str], fields: tuple[str, ...]) -> None:
    """Raise a UserError if no column of the text is there."""
    if not set(fields) & set(columns):
        raise UserError(f"{name}: no column {missing_field(columns, fields)}")


def missing_field(columns: Iterable[str], fields: tuple[str, ...]) -> str:
    """Return a part of a message: the fields that were expected and found, and the flags that name them."""
    expected, listed = " or ".join(map(repr, fields)), ", ".join(map(repr, islice(columns, 20))) or "none"
    return f"{expected} (it has {listed}): name it with --text-field, or several languages with --languages"


def _parse_parquet(name: str, stream: IO[bytes], fields: tuple[str, ...], title: str | None) -> Iterator[Record]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(stream, page_checksum_verification=True)
        used = _used_columns(name, file.schema_arrow.names, fields, title)
        columns = [column for column, _ in used] if fields else None
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns, use_threads=False):
            try:
                rows: list[dict[str, Any] | BadRecord] = batch.to_pylist()
            except UnicodeDecodeError:  # in one of the rows
                rows = [_parquet_row(batch.slice(row, 1)) for row in range(batch.num_rows)]
            for row in rows:
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the machine; pyarrow's own have no number
            raise
        raise UserError(f"{name}: row {number + 1}: truncated, or not really .parquet: {error}") from error


def _parquet_row(batch: Any) -> dict[str, Any] | BadRecord:
    try:
        return batch.to_pylist()[0]
    except UnicodeDecodeError as error:
        return undecodable("utf-8", error.object[error.start])
