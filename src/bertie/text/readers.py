"""Raw text to documents: .txt and .jsonl, plain or compressed, streamed; every complaint names file and line."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, cast

from bertie import storage
from bertie.contracts import Document
from bertie.errors import UsageError, UserError

SUFFIXES = tuple(kind + packed for kind in (".txt", ".jsonl") for packed in ("", ".gz", ".xz"))
BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Boundary = Literal["blank-line", "file"]


def read(
    paths: list[Path],
    *,
    documents: Boundary = "blank-line",
    text_field: str = "text",
    on_bytes: Callable[[int], None] | None = None,
) -> Iterator[Document]:
    """Stream the documents of files and folders (files of known suffixes in them, sorted, none hidden), no blank ones.

    In .txt a blank line ends a document, or with documents="file" only the file's end does; in .jsonl each line is an
    object with `text_field`. `on_bytes` hears how many more bytes on disk have been read, `expected_bytes` in total.
    Errors: UsageError for paths, before anything is read; UserError for what is in the files.
    """
    return _read(files(paths), documents, text_field, on_bytes or (lambda _: None))


def expected_bytes(paths: list[Path]) -> int:
    """Size on disk of all that `read` would read."""
    return sum(path.stat().st_size for path in files(paths))


def files(paths: list[Path]) -> list[Path]:
    """The files that paths and folders stand for. Errors: UsageError."""
    if not paths:
        raise UsageError(f"there is no text to read: name files ({', '.join(SUFFIXES)}) or folders of them")
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            named = (item for item in _inside(path) if item.name.endswith(SUFFIXES) and item.is_file())
            inside = sorted(item for item in named if not _hidden(item.relative_to(path)))
            if not inside:
                raise UsageError(f"{path}: no text in this folder (looked for {', '.join(SUFFIXES)})")
            found += inside
        elif not path.is_file():
            raise UsageError(f"no such file: {path}")
        elif not path.name.endswith(SUFFIXES):
            raise UsageError(f"{path}: cannot tell the format from the name: use one of {', '.join(SUFFIXES)}")
        else:
            found.append(path)
    return found


def _inside(folder: Path) -> Iterator[Path]:
    """Everything below a folder. Errors: OSError for a sub-folder that may not be read, instead of leaving it out."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent) / name for name in names)


def require_outside(out: Path, paths: list[Path]) -> None:
    """Errors: UsageError where `out` lies in a folder of text, so that the next reading would take it for text."""
    for path in paths:
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise UsageError(f"{out} lies in {path}, which is read for text: give an --out elsewhere")


def _hidden(path: Path) -> bool:
    """What file systems and editors leave about, and folders that are still being written."""
    return any(part.startswith(".") for part in path.parts)


def _read(
    paths: list[Path], documents: Boundary, text_field: str, on_bytes: Callable[[int], None]
) -> Iterator[Document]:
    for path in paths:
        lines = _lines(path, on_bytes)
        if path.name.removesuffix(".gz").removesuffix(".xz").endswith(".jsonl"):
            yield from _json_documents(path, lines, text_field)
        else:
            yield from _text_documents(path, lines, documents)


def _text_documents(path: Path, lines: Iterator[tuple[int, str]], documents: Boundary) -> Iterator[Document]:
    collected: list[str] = []
    first = 1
    for number, line in lines:
        if line.strip():
            first = first if collected else number
            collected.append(line)
        elif documents == "file":
            collected += [line] if collected else []
        elif collected:
            yield Document("\n".join(collected), f"{path}:{first}")
            collected = []
    if collected:
        yield Document("\n".join(collected).rstrip(), f"{path}:{first}")


def _json_documents(path: Path, lines: Iterator[tuple[int, str]], text_field: str) -> Iterator[Document]:
    for number, line in lines:
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not JSON: {error}") from error
        if not isinstance(record, dict) or text_field not in record:
            has = f"it has {', '.join(map(repr, record)) or 'none'}" if isinstance(record, dict) else "it is no object"
            raise UserError(f"{where}: no field {text_field!r} ({has}): name the field with --text-field")
        text = record[text_field]
        if not isinstance(text, str):
            raise UserError(f"{where}: field {text_field!r} is not a string: {text!r:.60}")
        if not storage.is_unicode(text):
            raise UserError(
                f"{where}: field {text_field!r} has half a surrogate pair (\\ud800 … \\udfff), no character"
            )
        if text.strip():
            yield Document(text, where)


def _lines(path: Path, on_bytes: Callable[[int], None]) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends. Errors: UserError, with the line that could not be read."""
    number, seen = 0, 0
    try:
        with open(path, "rb") as raw:
            for number, line in enumerate(_unpacked(path, raw), start=1):
                yield number, _decode(line, path, number)
                if (position := raw.tell()) != seen:
                    on_bytes(position - seen)
                    seen = position
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path}:{number + 1}: truncated, or not really {path.suffix}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(raw))
    if path.suffix == ".xz":
        return lzma.open(raw)
    return raw


def _decode(line: bytes, path: Path, number: int) -> str:
    if number == 1:
        line = line.removeprefix(BYTE_ORDER_MARK)
    if b"\x00" in line:
        raise UserError(f"{path}:{number}: a NUL byte: this is not text in UTF-8")
    try:
        return line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UserError(f"{path}:{number}: byte 0x{byte:02x} is not UTF-8: convert the file to UTF-8") from error
