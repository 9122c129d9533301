"""Read the rows of example files as dicts by column, and check their values.

A bad row is returned as an error in its place, so that the caller can skip it or raise it.
"""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from bertie.base import console, storage
from bertie.base.errors import UsageError, UserError, join_names, nearest, nearest_path, shorten
from bertie.base.untrusted import parse_json
from bertie.examples.in_memory import parquet_names, plain, with_names
from bertie.files.encodings import UTF8
from bertie.files.formats import NamesOfHeaderless, read_records
from bertie.files.lines import BadRecord, decode_lines, require_line_feeds, undecodable
from bertie.files.sources import KNOWN, SUFFIXES, Format, Source, split_suffix

T = TypeVar("T")
STDIN, STDIN_DEVICE = Path("-"), Path("/dev/stdin")  # the name of stdin on the command line, and its file
PROBED_ROWS = 100  # rows or lines at the start of a file that decide about its columns
MAX_LABEL, _MAX_LABEL = 1e15, "1e15"  # its square, and the sum of many, are finite in float32
_NOT_UTF8 = undecodable("utf-8", None).reason


class Row(NamedTuple):
    """One row of a file, or one Python value.

    Attributes:
        values: The values by column.
        source: The file name and line ("dev.tsv:12"), which the example keeps.
        place: The same with the full path, for error messages.
    """

    values: dict[str, Any]
    source: str
    place: str

    def renamed(self, names: dict[str, str]) -> Row:
        """Return the row with other names for some columns."""
        return self._replace(values={names.get(name, name): value for name, value in self.values.items()})


class Header(tuple[str, ...]):
    """The names of the columns of a row."""

    def unclear(self, problem: str, *flags: str) -> UsageError:
        """Return the error for columns that are only clear with flags, named without --task."""
        choice = " and ".join(f"--task.{flag}" for flag in flags)
        is_row = any(len(name.split()) > 4 or parse_finite(name) is not None for name in self)
        header = "; if these are cells of a row, add a first line with names, such as text,label" * is_row
        return UsageError(f"{problem}; its columns are: {join_names(self)}", f"Choose with {choice}{header}")

    def require(self, flag: str, *names: str) -> None:
        """Raise a UsageError if a column that a flag names is missing. A name is empty if the flag is not set."""
        if missing := [name for name in names if name and name not in self]:
            error, near = self.unclear(f"no column {missing[0]!r}", flag), nearest(missing[0], self)
            raise UsageError(error.problem, f"Did you mean {near!r}? " * bool(near) + error.remedy)


def name_of(source: Any) -> str:
    """Return the name of a file, or of examples in memory, for messages."""
    return str(Path(source)) if isinstance(source, str | Path) else "the examples"


def is_stdin(path: Path | str) -> bool:
    """Whether a name on the command line means stdin: "-" is .txt, "-.jsonl", "-.csv" and "-.tsv" name the format."""
    return str(path) in ("-", "-.jsonl", "-.csv", "-.tsv")


def file_format(path: Path) -> str:
    """Return the format that a file name states, such as "jsonl" for a.jsonl.gz; "txt" for stdin, "" for none."""
    return "txt" if path == STDIN else split_suffix(path.name)[0].removeprefix(".")


def read_rows(path: Path, headerless: NamesOfHeaderless | None = None) -> Iterator[Row | UserError]:
    """Read the rows of a .txt, .jsonl, .csv, .tsv or .parquet file, lazily; all but .parquet may be compressed. A .json file
    is read at once.

    Args:
        path: The file. "-" is stdin, read as .txt, where each line is a row with the column "text"; see `is_stdin`.
        headerless: Recognizes .csv and .tsv files without a header; see `NamesOfHeaderless`.

    Returns:
        The rows in order, with an error in place of each one that cannot be read.

    Raises:
        UsageError: if the file does not exist or has no known format.
        UserError: while reading, if the file as a whole cannot be read.
    """
    if not is_stdin(path):
        require_file(path)
        if (format := file_format(path)) in ("json", "jsonl"):
            if is_json_lines(path):
                return _read_rows(path, "jsonl", headerless)
            if format == "jsonl":
                console.info_once(f"{path} is one JSON list of rows, not a row per line")
            return read_json_rows(path, 'a list of objects, as in [{"text": …}]')
        if not path.name.lower().endswith(SUFFIXES):
            excel = "In Excel, save it as CSV UTF-8" if format.startswith("xls") else ""
            raise UsageError(f"{path}: examples are read from files of these formats: .json, {KNOWN}", excel)
    return _read_rows(STDIN_DEVICE if is_stdin(path) else path, cast(Format, file_format(path)), headerless)


def is_json_lines(path: Path) -> bool:
    """Return whether a .json or .jsonl file has a value per line: only .jsonl should, but `datasets` writes such a .json."""
    if (format := file_format(path)) not in ("json", "jsonl"):
        return False
    start = b""
    with suppress(EOFError, UserError), _open(path) as stream:  # reading the rows says what is wrong
        start = stream.readline(1 << 20).removeprefix(codecs.BOM_UTF8).strip()
    if format == "jsonl":
        return not start.startswith(b"[")
    with suppress(ValueError, RecursionError):
        return isinstance(value := parse_json(start.decode()), dict) and not {"data", "version"} & value.keys()
    return False


def read_json_rows(path: Path, content: str) -> Iterator[Row | UserError]:
    """Yield the objects of the list in a .json file.

    Args:
        path: The file.
        content: What it should be, for messages.

    Raises:
        UserError: It is no list.
    """
    require_file(path)
    with _open(path) as stream:
        rows = storage.of_kind(path, storage.parse(path, stream.read()), list, content)
    for number, values in enumerate(rows, 1):
        name = str(values.get("id", number)) if isinstance(values, dict) else str(number)
        place = f"example {number}" + (f" ({name})" if name != str(number) else "")
        if isinstance(values, dict):
            yield Row(values, f"{path.name}: {place}", f"{path}: {place}")
        else:
            yield UserError(f"{path}: {place}: expected an object, found {type(values).__name__}")


def convert_rows(rows: Iterable[Row | T | UserError], convert: Callable[[Row], T]) -> Iterator[T | UserError]:
    """Convert rows, with an error in place of each one for which `convert` raises a UserError. Other items stay.

    Raises a UsageError, which is about all rows.
    """
    for row in rows:
        try:
            yield convert(row) if isinstance(row, Row) else row
        except UsageError:
            raise
        except UserError as error:
            yield error


def _read_rows(path: Path, format: Format, headerless: NamesOfHeaderless | None) -> Iterator[Row | UserError]:
    names = parquet_names(path) if format == "parquet" else {}
    with _open(path) as stream:
        for number, record in read_records(format, str(path), stream, headerless=headerless):
            place = f"{path}:{number}"
            if isinstance(record, BadRecord):
                yield _to_error(record, place)
            else:
                yield Row(with_names(record, names) if names else record, f"{path.name}:{number}", place)


def read_lines(path: Path) -> Iterator[tuple[int, str | UserError]]:
    """Yield the numbered lines of a file, with an error in place of each one that cannot be read.

    Raises:
        UserError: if the file cannot be read.
    """
    name = str(path)
    with _open(path) as stream:
        lines = decode_lines(name, stream, UTF8)
        for number, line in require_line_feeds(name, lines, may_be_one_line=file_format(path) in ("txt", "")):
            yield number, _to_error(line, f"{path}:{number}") if isinstance(line, BadRecord) else line


def _open(path: Path) -> AbstractContextManager[IO[bytes]]:
    return Source(str(path), path.name, 0, "").open()


def _to_error(record: BadRecord, place: str) -> UserError:
    """Return a bad record as an error, or raise it if the start of the next record is unknown."""
    hint = "; convert the file to UTF-8 first (in Excel: save as CSV UTF-8)" if record.reason == _NOT_UTF8 else ""
    error = UserError(f"{place}: {record.detail}{hint}")
    if record.unsynchronized:  # a later row could get the label of another one
        raise error
    return error


def require_file(path: Path) -> None:
    """Raise a UsageError if `path` is not a regular file."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: give a file")
    if not path.exists():
        raise UsageError(f"no such file: {path}{nearest_path(path)}")
    if not path.is_file():
        raise UsageError(
            f"{path} is not a regular file: give one (rows can be piped: --input -.jsonl, or texts, one per line: --input -)"
        )


def row_from_python(values: dict[Any, Any], place: str) -> Row:
    """Return a Python dict as a row. Drops keys whose value is None; see `in_memory.plain` for the others.

    Raises:
        UserError: if a key is not a string.
    """
    for name in values:
        if not isinstance(name, str):
            raise UserError(f"{place}: its keys must be strings, but one is {shorten(repr(name))}")
    cells = {name: plain(value) for name, value in values.items()}
    return Row({name: value for name, value in cells.items() if value is not None}, place, place)


def require_string(value: Any, name: str, place: str) -> str:
    """Return a value that is text, or raise a UserError.

    Args:
        value: The value.
        name: Its column, for error messages.
        place: Its file and line, for error messages.
    """
    if not isinstance(value, str):
        raise UserError(f"{place}: {name!r} must be a string, found {json.dumps(value, default=repr)[:60]}")
    if not storage.is_unicode(value):
        raise UserError(f"{place}: {name!r} holds half of a surrogate pair, which is not a character")
    return value


def parse_label(value: Any, name: str, place: str) -> str | None:
    """Return a label as a string: numbers and booleans as in JSON, None if it is empty or NaN (missing in pandas).

    Args:
        value: The label.
        name: Its column, for error messages.
        place: Its file and line, for error messages.

    Raises:
        UserError: if the value is of another type.
    """
    if type(value) is str and value.isascii():  # most are, and need no check of their characters
        text = value.strip()
        return None if not text or text.lower() == "nan" else text
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float):
        return repr(value) if type(value) is int else json.dumps(value)
    text = require_string(value, name, place).strip()
    return None if text.lower() in ("", "nan") else text


def label_or_none(read: Callable[[], T], strict: bool) -> T | None:
    """Return a gold label that `read` returns; None if it raises UserError and is not `strict`, as in test sets."""
    try:
        return read()
    except UserError:
        if strict:
            raise
        return None


def parse_label_number(value: str | None) -> float | None:
    """Return a label as a number to train on; None if it is not finite or its magnitude is more than MAX_LABEL."""
    number = parse_finite(value)
    return None if number is None or abs(number) > MAX_LABEL else number


def describe_bad_number(value: str) -> str:
    """Say, for an error message, why `parse_label_number` returns None."""
    reason = "not a finite number" if parse_finite(value) is None else f"too large: the maximum is ±{_MAX_LABEL}"
    return f"{shorten(value)!r}, which is {reason}"


def parse_finite(value: str | None) -> float | None:
    """Return a text as a finite number; None if it is not one. Python's 1_000 is not."""
    try:
        number = math.nan if value is None or "_" in value else float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def parse_index(value: str) -> int | None:
    """Return a text as an integer of at most 18 digits, from 0; None if it is not one."""
    return int(value) if value.isdecimal() and len(value) <= 18 else None


def parse_position(value: Any) -> int | None:
    """Return a position from 0, also from text, and from 3.0, which pandas writes beside missing ones; None if it is none."""
    if type(value) is int:
        return value if 0 <= value < 10**18 else None
    if not isinstance(value, float | str):
        return None
    whole, point, rest = str(value).partition(".")
    return parse_index(whole) if not rest.strip("0") and (rest or not point) else None


def none_of(label: str | None, labels: Iterable[str], what: str) -> str:
    """Say, for an error message, that a label is none of a task's, or missing. what: "classes", "relations" or "labels"."""
    problem = "no label" if label is None else f"the label {shorten(label)!r} is none of the {what}"
    return f"{problem}; the {what} are {join_names(labels)}"


def named_columns(names: Iterable[str], wanted: tuple[str, ...]) -> list[str]:
    """Return the columns with one of these names, in the order of `wanted`, whatever their case."""
    ranked = [(wanted.index(name.lower()), name) for name in names if name.lower() in wanted]
    return [name for _, name in sorted(ranked, key=lambda pair: pair[0])]


def distinct_columns(*settings: str) -> Callable[[Any], None]:
    """Return a `__post_init__` that raises a UsageError if two of these settings name the same column."""

    def check(kind: Any) -> None:
        flags: dict[str, str] = {}
        for name in settings:
            columns, flag = getattr(kind, name), f"--task.{name.replace('_', '-')}"
            for column in filter(None, [columns] if isinstance(columns, str) else columns):
                if column in flags:
                    raise UsageError(f"{flags[column]} and {flag} name the same column, {column!r}")
                flags[column] = flag

    return check
