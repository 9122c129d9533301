"""Rows of .tsv, .csv and .jsonl files, as dicts by column; .txt has one, "text".

A bad row is an error in its place: the caller skips or raises it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from bertie import console, storage
from bertie.errors import UsageError, UserError

T = TypeVar("T")
STDIN, STDIN_DEVICE = Path("-"), Path("/dev/stdin")  # as it is named, and where it lies
SHOWN = 3  # of many, what is told in full
PROBED_ROWS = 100  # rows or lines that tell of the whole file what it has
LARGEST, _LARGEST = 1e15, "1e15"  # its square is a number in float32 too, and so are sums of many
_ONE_LINE = (".txt", ".json", ".jsonl", "")  # files of a single line that may hold a \r and be whole

Headless = Callable[[list[str]], list[str] | None]
"""From the first row's cells to the names of the columns, where that row is plainly none of names."""


class Row(NamedTuple):
    """source: "dev.tsv:12", to be kept with the example; place: the same with the whole path, for errors."""

    values: dict[str, Any]
    source: str
    place: str


def rows(path: Path, headless: Headless = lambda _: None) -> Iterator[Row | UserError]:
    """path: "-" is a .txt file on stdin. Errors, raised: UsageError for a missing file or an unknown ending, UserError for a
    file that cannot be read at all."""
    if path == STDIN:
        return _txt(STDIN_DEVICE, headless)
    require_file(path)
    readers = {".tsv": _tsv, ".csv": _csv, ".jsonl": _jsonl, ".txt": _txt}
    if path.suffix not in readers:
        raise UsageError(f"{path}: examples are read from {', '.join(readers)} files")
    return readers[path.suffix](path, headless)


def require_file(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file")
    if not path.exists():
        raise UsageError(f"no such file: {path}")
    if not path.is_file():
        raise UsageError(f"{path} is no regular file: give one (texts to predict can be piped, one a line: --input -)")


def skip_until_columns(
    found: Iterator[Row | UserError], path: Path, find: Callable[[Row], object]
) -> Iterator[Row | UserError]:
    """Of .jsonl: the rows, with an error in place of each before the first in which `find` finds its columns.

    find: its UsageError begins with the file or the row's place. Errors, raised: the first of those, of the file, where none
    of its first rows has them.
    """
    problem: UsageError | None = None
    held: list[Row | UserError] = []
    for row in found:
        has = False
        if isinstance(row, Row):
            try:
                find(row)
                has = True
            except UsageError as error:
                told = str(error).removeprefix(row.place).removeprefix(str(path))
                problem = problem or UsageError(f"{path}{told}")
                row = UserError(f"{row.place}{told}")
            except UserError:  # it may have them, and is wrong in another way
                has = False
        if has:
            yield from held
            yield row
            yield from found
            return
        if problem is None:
            yield row
        else:
            held.append(row)
        if len(held) == PROBED_ROWS:
            break
    if problem:
        raise problem


def row_from_python(values: dict[Any, Any], place: str) -> Row:
    """A Python value; None is what is not there, numpy's numbers are Python's. Errors: UserError for keys that are no strings."""
    for name in values:
        if not isinstance(name, str):
            raise UserError(f"{place}: its keys must be strings, and one is {shorten(repr(name))}")
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    return Row({name: value for name, value in plain.items() if value is not None}, place, place)


def valid_examples(found: Iterable[T | UserError], where: str, strict: bool = False) -> list[T]:
    """What could be read; the rest is counted and said. Errors: UserError where nothing could, or, strictly, for the first."""
    good: list[T] = []
    bad: list[UserError] = []
    for each in found:
        if not isinstance(each, UserError):
            good.append(each)
        elif strict:
            raise each
        else:
            bad.append(each)
    if bad and not good:
        raise bad[0]
    if not good:
        raise UserError(f"{where}: no examples in it")
    if bad:
        told = first_few(map(str, bad), len(bad))
        console.warn(f"{len(bad):,} of {len(bad) + len(good):,} rows are skipped (--strict refuses them): {told}")
    return good


def string(value: Any, name: str, place: str) -> str:
    """Errors: UserError for what is no text."""
    if not isinstance(value, str):
        raise UserError(f"{place}: {name!r} must be a string, found {json.dumps(value, default=repr)[:60]}")
    if not storage.is_unicode(value):
        raise UserError(f"{place}: {name!r} holds half of a surrogate pair, which is no character")
    return value


def label(value: Any, name: str, place: str) -> str | None:
    """A label as a string: numbers and true/false as JSON writes them; None for an empty one, or NaN as pandas writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float):
        return json.dumps(value)
    text = string(value, name, place).strip()
    return None if text.lower() in ("", "nan") else text


def parse_label_number(value: str | None) -> float | None:
    """A label as a number that can be learned: a finite one, at most LARGEST either way; None where it is none."""
    number = parse_finite(value)
    return None if number is None or abs(number) > LARGEST else number


def describe_bad_number(value: str) -> str:
    """For messages: what is wrong with a label that `number_of` does not take."""
    wrong = "no finite number" if parse_finite(value) is None else f"too large: the most is {_LARGEST} either way"
    return f"{shorten(value)!r}, which is {wrong}"


def parse_finite(value: str | None) -> float | None:
    """A text as a finite number; None where it is none. Python's 1_000 is none."""
    try:
        number = math.nan if value is None or "_" in value else float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse_index(value: str) -> int | None:
    """A number from 0 of at most 18 digits; None for anything else."""
    return int(value) if value.isdecimal() and len(value) <= 18 else None


def shorten(text: str, most: int = 40) -> str:
    """For messages."""
    return text if len(text) <= most else f"{text[:most]}…"


def join_names(names: Iterable[str]) -> str:
    """For messages: of columns or classes, some."""
    return ", ".join(shorten(name) for name in list(names)[:30])


def first_few(said: Iterable[str], count: int, between: str = "; ") -> str:
    """For messages: the first of `count`, and how many more there are."""
    more = f" … and {count - SHOWN:,} more" if count > SHOWN else ""
    return between.join(islice(said, SHOWN)) + more


def require_distinct_columns(**named: str) -> None:
    """named: from flags to columns; empty: none. Errors: UsageError where one column is to be two things."""
    flags = {column: flag for flag, column in named.items() if column}
    for flag, column in named.items():
        if column and flags[column] != flag:
            names = " and ".join(f"--task.{name.replace('_', '-')}" for name in (flag, flags[column]))
            raise UsageError(f"{names} name one column, {column!r}")


def require_list(texts: Any) -> Any:
    """A string is iterable too, and a dict: its characters or keys would each be taken for a text."""
    if isinstance(texts, str | bytes | dict | Path) or not isinstance(texts, Iterable):
        raise UsageError(f"expected a list of texts and got one {type(texts).__name__}: put it in brackets")
    return texts


def lines(path: Path) -> Iterator[str]:
    """Lines with their ends. Only "\\n" ends a line: U+2028 and its like are text. Errors: UserError."""
    for line in lines_or_errors(path):
        if isinstance(line, UserError):
            raise line
        yield line


def lines_or_errors(path: Path, errors: str = "strict") -> Iterator[str | UserError]:
    """The same, with an error in the place of a line that is no UTF-8. errors: as `bytes.decode` has it. Raises UserError."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1 and b"\r" in line.rstrip(b"\r\n") and _is_all(line, file, path):
                    raise UserError(
                        f"{path}: its lines end in \\r alone; convert the file to lines that end in \\n first"
                    )
                try:
                    yield line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
                except UnicodeDecodeError:
                    yield _no_utf8(path, number)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _is_all(line: bytes, file: BufferedReader, path: Path) -> bool:
    """Whether a file whose first line holds a \\r has no other line, and should have: a last \\n may have been put behind it."""
    return not line.endswith(b"\n") or (path.suffix not in _ONE_LINE and not file.peek(1))


def _no_utf8(path: Path, line: int) -> UserError:
    return UserError(f"{path}:{line}: not UTF-8 text; convert the file to UTF-8 first")


def _jsonl(path: Path, _: Headless) -> Iterator[Row | UserError]:
    for number, line in enumerate(lines_or_errors(path), 1):
        if isinstance(line, UserError):
            yield line
            continue
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield UserError(f"{path}:{number}: not valid JSON: {error}")
            continue
        if isinstance(values, dict):
            yield Row(values, f"{path.name}:{number}", f"{path}:{number}")
        else:
            yield UserError(f'{path}:{number}: expected a JSON object, as in {{"text": …, "label": …}}')


def _txt(path: Path, _: Headless) -> Iterator[Row | UserError]:
    """A text a line, an empty one too."""
    for number, line in enumerate(lines_or_errors(path), 1):
        if isinstance(line, UserError):
            yield line
        else:
            yield Row({"text": line.rstrip("\r\n")}, f"{path.name}:{number}", f"{path}:{number}")


def _tsv(path: Path, headless: Headless) -> Iterator[Row | UserError]:
    """Tabs separate, nothing quotes: a lone " is text. As in .csv, a line with nothing in it is no row; empty cells are one."""
    return _table(path, _tsv_cells(path), headless)


def _tsv_cells(path: Path) -> Iterator[tuple[int, list[str] | UserError]]:
    for number, line in enumerate(lines_or_errors(path), 1):
        if isinstance(line, UserError):
            yield number, line
        elif line := line.rstrip("\r\n"):
            yield number, line.split("\t")


def _csv(path: Path, headless: Headless) -> Iterator[Row | UserError]:
    return _table(path, _csv_cells(path), headless)


def _csv_cells(path: Path) -> Iterator[tuple[int, list[str] | UserError]]:
    csv.field_size_limit(1 << 24)  # the module's own limit is shorter than a long article; an open quote reads up to it
    found = lines_or_errors(path, "surrogateescape")  # so none is an error
    escaped = (line for line in found if isinstance(line, str))
    reader = csv.reader(escaped, strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield start, cells if storage.is_unicode("".join(cells)) else _no_utf8(path, start)
            start = reader.line_num + 1
    except csv.Error as error:  # nobody knows where the next row begins
        if "new-line character" in str(error):
            told = "a \\r (carriage return) stands outside quotes: quote the cell, or make all lines end in \\n"
            raise UserError(f"{path}:{reader.line_num}: {told}") from error
        hint = "; is a quote left open?" if "limit" in str(error) else ""
        raise UserError(f"{path}:{start}: not valid CSV: {error}{hint}") from error


def _table(
    path: Path, found: Iterator[tuple[int, list[str] | UserError]], headless: Headless
) -> Iterator[Row | UserError]:
    """Rows as dicts by the names in the first one, or by those that `headless` gives for it."""
    header: list[str] = []
    for number, cells in found:
        if isinstance(cells, UserError):
            if not header:
                raise cells
            yield cells
            continue
        if not header:
            names = headless(cells)
            header = names or [name.strip() for name in cells]
            twice = {name for name in header if name and header.count(name) > 1}
            if twice:
                raise UserError(f"{path}: two columns are named {min(twice)!r}")
            if not names:
                continue
        if len(cells) == len(header):
            yield Row(dict(zip(header, cells, strict=True)), f"{path.name}:{number}", f"{path}:{number}")
        else:
            yield UserError(f"{path}:{number}: {len(cells)} columns, but the first line has {len(header)}")
    if not header:
        raise UserError(f"{path} is empty")
