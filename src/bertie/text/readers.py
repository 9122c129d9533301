"""Raw text to documents, streamed. What is wrong with a file ends the reading; what is wrong with a record is a counted skip."""

from __future__ import annotations

import codecs
import csv
import errno
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from bertie import storage
from bertie.contracts import Document
from bertie.errors import MachineError, UserError
from bertie.files import encodings, sources
from bertie.files.sources import HUB, Source
from bertie.text.read_counts import ReadCounts

MAX_RECORD_BYTES = 64_000_000  # bytes of one record
OVERSIZE = f"over {MAX_RECORD_BYTES // 1_000_000} MB"
ITS_OWN = (errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR)  # of what is asked for; the rest may pass
BATCH = 256  # rows of a .parquet file in memory

UNDECODABLE = re.compile("[\udc80-\udcff]")  # what `surrogateescape` makes of bytes
CSV = tuple(f".csv{packed}" for packed in sources.COMPRESSIONS)
_Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True)
class ReaderOptions:
    """How to read text."""

    documents: Literal["blank-line", "file"] = "blank-line"
    """In .txt files: a blank line ends a document, or every file is one."""
    text_field: str = "text"
    """In all other files: the key or column of the text."""
    encoding: str | None = None
    """Of all the files, such as windows-1252; left out: told by each file's bytes, and said where it is not UTF-8."""
    strict: bool = False
    """Stop at the first record that cannot be used, instead of counting it."""


def read(
    texts: Iterable[str | Path], reading: ReaderOptions = ReaderOptions(), tally: ReadCounts | None = None
) -> Iterator[Document]:
    """Stream the documents of files, folders, patterns and URLs (`sources.find`), no blank ones.

    In .txt a blank line ends a document, or with documents="file" only the file's end does; everywhere else each record
    is one, with its text in `text_field`. `tally` hears what was skipped.
    Errors: UsageError for paths, before anything is read; UserError for a file that cannot be read, or that holds
    records and not one that can be used.
    """
    found = sources.find(texts)
    return read_sources(found, reading, tally or ReadCounts())


def read_sources(found: list[Source], reading: ReaderOptions, tally: ReadCounts) -> Iterator[Document]:
    """`read` of files that are known already."""
    if reading.encoding:
        encodings.require(reading.encoding)
    tally.strict = reading.strict
    for source in found:
        before = tally.total_skipped
        empty = True
        for document in _documents(source, reading, tally):
            empty = False
            yield document
        if empty and tally.total_skipped > before:
            raise UserError(f"nothing in {source.path} can be used: {tally.last}")
        sources.require_unchanged(source)


def _documents(source: Source, reading: ReaderOptions, tally: ReadCounts) -> Iterator[Document]:
    name = source.path
    try:
        if source.format == "hub":
            yield from _rows(name, _hub(source, reading), reading.text_field, tally)
            return
        with source.open() as (stream, raw):
            if source.format == "parquet":
                yield from _rows(name, _parquet(name, raw, reading.text_field), reading.text_field, tally)
                return
            lines = _Counted(_lines(name, stream, reading, tally))
            try:
                if source.format == "txt":
                    yield from _text(name, lines, reading.documents == "file", tally)
                elif source.format == "jsonl":
                    yield from _rows(name, _json(name, lines, tally), reading.text_field, tally)
                else:
                    rows = _table(name, lines, "\t" if source.format == "tsv" else ",", reading.text_field, tally)
                    yield from _rows(name, rows, reading.text_field, tally)
            except UnicodeError as error:  # of UTF-16 and 32, where nobody can say where the next line begins
                said = (
                    f"{reading.encoding}, as --encoding says"
                    if reading.encoding
                    else "the encoding that its first bytes say"
                )
                raise UserError(f"{name}:{lines.number + 1}: not in {said}") from error
            except EOFError as error:
                raise UserError(
                    f"{name}:{lines.number + 1}: truncated, or not really {source.compression}: {error}"
                ) from error
    except UserError:
        raise
    except OSError as error:
        kind = UserError if error.errno in ITS_OWN else MachineError
        raise kind(f"cannot read {name}: {error.strerror or error}") from error
    except Exception as error:
        if source.format == "hub" or "://" in name:  # the network's: every store has its own
            raise MachineError(f"{name} broke off: {' '.join(str(error).split())[:300]}") from error
        raise


class _Counted:
    """Lines that know how far they are, for what is raised beneath them."""

    def __init__(self, lines: _Lines):
        self.lines, self.number = lines, 0

    def __iter__(self) -> _Lines:
        for number, line in self.lines:
            self.number = number
            yield number, line


def _lines(name: str, stream: IO[bytes], reading: ReaderOptions, tally: ReadCounts) -> _Lines:
    """Numbered lines without their ends; those that cannot be used are left out and counted."""
    sample = _peek(stream)
    encoding = encodings.require(reading.encoding) if reading.encoding else encodings.detect(sample[0])
    if encoding is None and sample[1]:
        raise sample[1]  # too little was unpacked to tell
    if encoding is None:
        raise UserError(f"{name}:1: not text in an encoding that can be told: name it with --encoding")
    tally.encoding(encoding.name.removesuffix("-sig"), name, encoding.guessed)
    joined: IO[bytes] = io.BufferedReader(_Joined(*sample, stream), 1 << 20)
    if encoding.by_lines:
        yield from _byte_lines(name, joined, encoding.name, tally, whole=name.lower().endswith(CSV))
        return
    text = io.TextIOWrapper(joined, encoding.name, newline="\n")
    for number, line in _bounded(name, text, "\n", tally):
        if "\x00" in line:
            tally.skip("a NUL byte", f"{name}:{number}")
        else:
            yield number, (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")


def _byte_lines(name: str, stream: IO[bytes], encoding: str, tally: ReadCounts, whole: bool) -> _Lines:
    """whole: keep lines that are broken, since the quote that ends a field may be in them, with what they are broken by."""
    decode = codecs.getdecoder("utf-8" if encoding == "utf-8-sig" else encoding)
    for number, line in _bounded(name, stream, b"\n", tally):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if whole:
            yield number, decode(line, "surrogateescape")[0].rstrip("\r\n")
            continue
        if b"\x00" in line:
            tally.skip("a NUL byte", f"{name}:{number}")
            continue
        try:
            yield number, decode(line)[0].rstrip("\r\n")
        except UnicodeError as error:
            detail = f"byte 0x{line[error.start]:02x} " if isinstance(error, UnicodeDecodeError) else ""
            tally.skip(f"not in {encoding.removesuffix('-sig')}", f"{name}:{number}", f"{detail}is not {encoding}")


def _bounded(name: str, stream: Any, end: Any, tally: ReadCounts) -> Iterator[tuple[int, Any]]:
    """Lines of at most LARGEST bytes; a longer one is read past, some of it at a time."""
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES):
        number += 1
        if len(line) == MAX_RECORD_BYTES and not line.endswith(end):
            while (line := stream.readline(1 << 20)) and not line.endswith(end):
                pass
            tally.skip(OVERSIZE, f"{name}:{number}")
        else:
            yield number, line


def _peek(stream: IO[bytes]) -> tuple[bytes, Exception | None]:
    """The first bytes, up to encodings.SAMPLE, and the error that came after them."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < encodings.SAMPLE and (part := stream.read(1 << 16)):
            parts.append(part)
            size += len(part)
    except Exception as error:
        return b"".join(parts), error
    return b"".join(parts), None


class _Joined(io.RawIOBase):
    """What was read of a stream already, and the rest of it."""

    def __init__(self, first: bytes, error: Exception | None, rest: IO[bytes]):
        self.first, self.error, self.rest = io.BytesIO(first), error, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.first.read(len(buffer))
        if not part:
            if self.error:
                raise self.error
            part = self.rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def _text(name: str, lines: Iterable[tuple[int, str]], whole: bool, tally: ReadCounts) -> Iterator[Document]:
    collected: list[str] = []
    first, size = 1, 0
    for number, line in chain(lines, [(0, "")]):
        if line.strip() or (whole and size and number):
            first = first if size else number
            size += len(line.encode()) + 1
            if size > MAX_RECORD_BYTES:
                collected.clear()
            else:
                collected.append(line)
        elif size > MAX_RECORD_BYTES:
            tally.skip(
                OVERSIZE,
                f"{name}:{first}",
                f"a document over {MAX_RECORD_BYTES // 1_000_000} MB: part documents by blank lines",
            )
            size = 0
        elif size:
            yield Document("\n".join(collected).strip(), f"{name}:{first}")
            collected, size = [], 0


def _json(name: str, lines: Iterable[tuple[int, str]], tally: ReadCounts) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            tally.skip("not JSON", f"{name}:{number}", f"not JSON: {error}")


def _table(
    name: str, lines: Iterable[tuple[int, str]], separator: str, field: str, tally: ReadCounts
) -> Iterator[tuple[int, Any]]:
    """Rows by the names in the first one. Tabs separate and nothing quotes; with commas, quotes are as in RFC 4180."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # the module's only limit is global
    quoting = csv.QUOTE_NONE if separator == "\t" else csv.QUOTE_MINIMAL
    counted = _Counted(iter(lines))
    rows = csv.reader((line + "\n" for _, line in counted), delimiter=separator, quoting=quoting, strict=True)
    header: list[str] = []
    while True:
        number = counted.number + 1  # that nothing is left out before: only lines that are too long are
        try:
            cells = next(rows, None)
        except csv.Error as error:
            lost = max(counted.number - number + 1, 1)
            after = f", with the {lost - 1:,} lines after it that it takes for one" if lost > 1 else ""
            tally.skip("not CSV", f"{name}:{number}", f"not CSV: {error}{after}", lost)
            continue
        if cells is None:
            return
        if not header:
            header = [cell.strip() for cell in cells]
            _require_field(name, field, header)
        elif cells and len(cells) != len(header):
            lost = max(counted.number - number + 1, 1)  # an open quote takes what follows for one row
            detail = f"{len(cells)} columns, but the first line has {len(header)}"
            tally.skip("columns that do not match the first line", f"{name}:{number}", detail, lost)
        elif cells and UNDECODABLE.search(cells[header.index(field)]):
            tally.skip(
                "not in its encoding", f"{name}:{number}", f"field {field!r} has bytes that are not in its encoding"
            )
        elif cells:
            yield number, dict(zip(header, cells, strict=True))


def _require_field(name: str, field: str, found: list[str]) -> None:
    if field not in found:
        has = ", ".join(map(repr, found[:20])) or "none"
        raise UserError(f"{name}: no column {field!r} (it has {has}): name the column with --text-field")
    if found.count(field) > 1:
        raise UserError(f"{name}: two columns are named {field!r}")


def _parquet(name: str, raw: IO[bytes], field: str) -> Iterator[tuple[int, Any]]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        file = parquet.ParquetFile(raw)
        _require_field(name, field, file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=BATCH, columns=[field], use_threads=False):
            for cell in batch.column(0):
                number += 1
                try:
                    yield number, {field: cell.as_py()}
                except UnicodeDecodeError as error:
                    yield number, error
    except pyarrow.ArrowException as error:
        raise UserError(f"{name}: row {number + 1}: truncated, or not really .parquet: {error}") from error


def _hub(source: Source, reading: ReaderOptions) -> Iterator[tuple[int, Any]]:
    """Rows of hf:ID, hf:ID:CONFIG or hf:ID:CONFIG:SPLIT (left out: "train"), streamed; ID may be a local folder."""
    import datasets

    name, config, split = [*source.path.removeprefix(HUB).split(":"), "", ""][:3]
    try:
        found = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        columns = found.column_names
    except Exception as error:  # the library's own, the hub's, the network's
        raise UserError(f"cannot open the data set {source.path}: {' '.join(str(error).split())[:300]}") from error
    if columns is not None:
        _require_field(source.path, reading.text_field, columns)
    yield from enumerate(found, 1)


def _rows(name: str, rows: Iterable[tuple[int, Any]], field: str, tally: ReadCounts) -> Iterator[Document]:
    for number, record in rows:
        where = f"{name}:{number}"
        if isinstance(record, UnicodeDecodeError):
            tally.skip("not in utf-8", where, str(record))
            continue
        if not isinstance(record, dict) or field not in record:
            has = f"it has {', '.join(map(repr, record)) or 'none'}" if isinstance(record, dict) else "it is no object"
            detail = f"no field {field!r} ({has}): name the field with --text-field"
            tally.skip(f"no field {field!r}", where, detail)
            continue
        text = record[field]
        if not isinstance(text, str):
            tally.skip("not a string", where, f"field {field!r} is not a string: {text!r:.60}")
        elif not storage.is_unicode(text):
            detail = f"field {field!r} has half a surrogate pair (\\ud800 … \\udfff), no character"
            tally.skip("half a surrogate pair", where, detail)
        elif "\x00" in text:
            tally.skip("a NUL byte", where)
        elif len(text) > MAX_RECORD_BYTES // 4 and len(text.encode()) > MAX_RECORD_BYTES:
            tally.skip(OVERSIZE, where)
        elif stripped := text.strip():
            yield Document(stripped, where)
        else:
            tally.blank += 1
