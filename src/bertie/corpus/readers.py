"""Stream documents from raw text. A problem of a file ends the reading; a bad record is skipped and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from bertie.base import console, storage
from bertie.base.contracts import Document
from bertie.base.errors import UsageError, UserError
from bertie.files import encodings, lines, sources
from bertie.files.formats import NoHeaderError, Record, missing_field, read_records, require_field
from bertie.files.lines import HALF_SURROGATE, NUL_BYTE, OVERSIZE, BadRecord, Line, decode_lines, require_line_feeds
from bertie.files.sources import HUB, Source

Documents = Literal["blank-line", "line", "file"]


@dataclass(frozen=True)
class ReaderOptions:
    """How to read text."""

    documents: Documents = "blank-line"
    """In .txt, .md and .rst files: a blank line ends a document, or each line or each file is one document."""
    text_field: str = "text"
    """In all other files: the key or column of the text."""
    title_field: str | None = None
    """In these files: the key or column of a title, which goes before the text, where a record has one."""
    languages: tuple[str, ...] = ()
    """The text is in several languages: the keys or columns of its translations, named by language codes, such as en de.
    A record may lack some of them."""
    encoding: str | None = None
    """Encoding of all files, such as windows-1252. By default it is detected per file, and reported if it is not UTF-8."""
    strict: bool = False
    """Stop at the first record that cannot be used, instead of skipping and counting it."""

    def __post_init__(self) -> None:
        if self.languages and self.text_field != "text":
            raise UsageError("--text-field and --languages both name the fields of the text: remove one of them")
        if len(set(self.languages)) < len(self.languages):
            raise UsageError(f"--languages {' '.join(self.languages)}: name each language once")
        if joined := [name for name in self.languages if "," in name or not name]:
            raise UsageError(f"--languages {joined[0]!r}: separate the languages by spaces, as in --languages en de")

    @property
    def fields(self) -> tuple[str, ...]:
        """The keys or columns of the text."""
        return self.languages or (self.text_field,)


@dataclass
class ReadCounts:
    """Counts of what the readers skipped.

    Attributes:
        strict: Whether the first record that cannot be used is an error.
        skipped: By reason: the number of records, and the message about the first one.
        encodings: By name: the number of files, and the first file whose encoding was guessed (or None).
        last: The message about the last skipped record of the file that is read; "" if there is none.
        blank: The number of records without text.
    """

    strict: bool = False
    skipped: dict[str, list[Any]] = field(default_factory=dict)
    encodings: dict[str, list[Any]] = field(default_factory=dict)
    last: str = ""
    blank: int = 0

    def skip(self, record: BadRecord, place: str) -> None:
        """Count a record that cannot be used. Raises UserError if `strict`.

        Args:
            record: The problem. Each of its lines counts as one record.
            place: The file and the line.
        """
        self.last = f"{place}: {record.detail}"
        if self.strict:
            raise UserError(self.last)
        _add(self.skipped, record.reason, record.lines, self.last)

    def encoding(self, name: str, file: str, guessed: bool) -> None:
        """Count the encoding of a file. Raises UserError if it was guessed and `strict`."""
        if guessed and self.strict:
            raise UserError(f"{file} is not UTF-8 and seems to be {name}: name its encoding with --encoding")
        _add(self.encodings, name, 1, file if guessed else None)

    def add(self, other: dict[str, Any]) -> None:
        """Add counts that `as_json` returned in another process."""
        self.blank += other["blank"]
        for entries, others in ((self.skipped, other["skipped"]), (self.encodings, other["encodings"])):
            for name, entry in others.items():
                _add(entries, name, *entry)

    def as_json(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "encodings": self.encodings, "blank": self.blank}

    def lines(self, places: bool = True) -> list[str]:
        """Return one sentence for each kind of skipped record, guessed encoding and blank records.

        Args:
            places: Name files and lines, as only makes sense on this machine.
        """
        sentences = [
            f"skipped {console.plural(count, 'record')}: {reason}" + f" (the first: {first})" * places
            for reason, (count, first) in self.skipped.items()
        ]
        for name, (count, first) in self.encodings.items():
            if first:
                others = f" and others, {count:,} files in total" * (count > 1)
                files = f"{first}{others}" if places else f"{count:,} files"
                sentences.append(f"encoding guessed as {name} (set it with --encoding): {files}")
        if self.blank:
            sentences.append(f"{self.blank:,} records have no text")
        return sentences


def _add(entries: dict[str, list[Any]], name: str, count: int, first: str | None) -> None:
    before, known = entries.get(name, (0, None))
    entries[name] = [before + count, known or first]


def read(
    texts: Iterable[str | Path], options: ReaderOptions = ReaderOptions(), counts: ReadCounts | None = None
) -> Iterator[Document]:
    """Stream the documents of files, folders, patterns and URLs; blank ones are left out.

    In .txt files a blank line ends a document, or only the end of the file with documents="file". In other files each
    record is one document.

    Args:
        texts: What to read; see `sources.find`.
        options: How to read it.
        counts: Receives the counts of skipped records.

    Raises:
        UsageError: before anything is read, if a path is wrong.
        UserError: if a file cannot be read, or if it has records but none can be used.
    """
    return read_sources(sources.find(texts), options, counts or ReadCounts())


def read_sources(files: list[Source], options: ReaderOptions, counts: ReadCounts) -> Iterator[Document]:
    """Stream the documents of files that `sources.find` found; see `read`."""
    if options.encoding:
        encodings.require(options.encoding)
    counts.strict = options.strict
    for source in files:
        if options.languages and source.format == "txt":
            raise UserError(f"{source.path} has no fields for --languages: give .jsonl, .csv, .tsv or .parquet")
    for source in files:
        counts.last, empty = "", True
        for document in _documents(source, options, counts):
            empty = False
            yield document
        if empty and counts.last:
            raise UserError(f"no record of {source.path} can be used: {counts.last}")
        sources.require_unchanged(source)


def _documents(source: Source, options: ReaderOptions, counts: ReadCounts) -> Iterator[Document]:
    name = source.path
    if source.format == "hub":
        yield from _from_records(name, _hub_records(source, options.fields), options, counts)
        return
    with source.open() as stream:
        encoding = encodings.UTF8
        if source.format != "parquet":
            if options.encoding:
                encoding = encodings.require(options.encoding)
            else:
                encoding, stream = encodings.detect_stream(name, stream)
            counts.encoding(encoding.name.removesuffix("-sig"), name, encoding.guessed)
        if source.format == "txt":
            decoded = decode_lines(name, stream, encoding)
            if options.documents != "file":  # else line ends would not be found
                decoded = require_line_feeds(name, decoded, may_be_one_line=True)
            yield from _from_lines(name, decoded, options.documents, counts)
            return
        try:
            records = read_records(source.format, name, stream, encoding, options.fields, options.title_field)
            yield from _from_records(name, records, options, counts)
        except NoHeaderError:  # an empty table has no documents, like any other empty file
            return


def _from_lines(name: str, decoded: Iterator[Line], ends: Documents, counts: ReadCounts) -> Iterator[Document]:
    collected: list[str] = []
    first, size = 1, 0
    limit = lines.MAX_RECORD_BYTES
    for number, line in chain(decoded, [(0, "")]):
        if isinstance(line, BadRecord):
            counts.skip(line, f"{name}:{number}")
        elif line.strip() and ends == "line":
            yield Document(line.strip(), f"{name}:{number}")
        elif line.strip() or (ends == "file" and size and number):
            first = first if size else number
            size += len(line.encode())
            if size > limit:
                collected.clear()
            else:
                collected.append(line.rstrip("\r\n"))
        elif size > limit:
            detail = f"a document over {limit // 1_000_000} MB: separate documents by blank lines"
            counts.skip(BadRecord(OVERSIZE.reason, detail), f"{name}:{first}")
            size = 0
        elif size:
            yield Document("\n".join(collected).strip(), f"{name}:{first}")
            collected, size = [], 0


def _hub_records(source: Source, fields: tuple[str, ...]) -> Iterator[tuple[int, Any]]:
    """Stream the rows of hf:ID, hf:ID:CONFIG or hf:ID:CONFIG:SPLIT ("train" by default). ID may be a local folder."""
    import datasets

    name, config, split = [*source.path.removeprefix(HUB).split(":"), "", ""][:3]
    try:
        dataset = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        columns = dataset.column_names
    except Exception as error:  # of the library, the hub or the network
        raise UserError(f"cannot open the data set {source.path}: {' '.join(str(error).split())[:300]}") from error
    if columns is not None:
        require_field(source.path, columns, fields)
    try:
        yield from enumerate(dataset, 1)
    except Exception as error:
        raise sources.interrupted(source.path, error) from error


def _from_records(
    name: str, records: Iterable[Record], options: ReaderOptions, counts: ReadCounts
) -> Iterator[Document]:
    for number, record in records:
        texts = record if isinstance(record, BadRecord) else _texts_of(record, options)
        if isinstance(texts, BadRecord):
            counts.skip(texts, f"{name}:{number}")
        elif text := "\n".join(filter(None, texts)):
            yield Document(text, f"{name}:{number}", tuple(texts[len(texts) - len(options.languages) :]))
        else:
            counts.blank += 1


def _texts_of(record: dict[str, Any], options: ReaderOptions) -> list[str] | BadRecord:
    """Return the stripped text of each field, after the title, if one is read. Missing titles and languages are ""."""
    fields = options.fields
    if not any(field in record for field in fields):
        return BadRecord(f"no field {' or '.join(map(repr, fields))}", f"no field {missing_field(record, fields)}")
    texts: list[str] = []
    for name in filter(None, dict.fromkeys((options.title_field, *fields))):
        missing = record.get(name) is None and (options.languages or name not in fields)
        text = "" if missing else _text_of(record[name], name)
        if isinstance(text, BadRecord):
            return text
        texts.append(text.strip())
    return texts


def _text_of(text: Any, field: str) -> str | BadRecord:
    if not isinstance(text, str):
        return BadRecord("not a string", f"field {field!r} is not a string: {text!r:.60}")
    if not storage.is_unicode(text):
        return BadRecord(HALF_SURROGATE.reason, f"field {field!r} has {HALF_SURROGATE.detail}")
    if "\x00" in text:
        return NUL_BYTE
    if len(text) > lines.MAX_RECORD_BYTES // 4 and len(text.encode()) > lines.MAX_RECORD_BYTES:
        return OVERSIZE
    return text
