"""Numbered lines of a text file. A line that cannot be used is replaced by a `BadRecord`, so that the caller decides."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

from bertie.base.errors import UserError
from bertie.base.untrusted import require_not_utf16
from bertie.files.encodings import Encoding

MAX_RECORD_BYTES = 64_000_000  # a longer line or record is read past in constant memory
SKIP_BYTES = 1 << 20  # bytes in memory while a longer line is read past


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A line or record that cannot be used.

    Attributes:
        reason: The kind of problem, the same for all records that have it ("not in utf-8"), for counting.
        detail: What is wrong with this record, without the file and the line.
        lines: The number of lines that are lost with the record.
        unsynchronized: Whether the start of the next record is unknown, so that reading on is a guess.
    """

    reason: str
    detail: str
    lines: int = 1
    unsynchronized: bool = False


Line = tuple[int, str | BadRecord]
"""The number of a line, from 1, and the line with its line end."""

OVERSIZE = BadRecord(f"over {MAX_RECORD_BYTES // 1_000_000} MB", f"over {MAX_RECORD_BYTES // 1_000_000} MB")
NUL_BYTE = BadRecord("a NUL byte", "a NUL byte, which is not text")
HALF_SURROGATE = BadRecord(
    "half a surrogate pair", "half a surrogate pair (\\ud800 … \\udfff), which is not a character"
)


def undecodable(encoding: str, byte: int | None) -> BadRecord:
    """Return the `BadRecord` of a line or cell that is not in its encoding.

    Args:
        encoding: The name of the encoding.
        byte: The first byte that the encoding does not allow; None if it is unknown.
    """
    name = encoding.replace("utf-8", "UTF-8")
    return BadRecord(f"not in {encoding}", f"not {name}" if byte is None else f"not {name} (byte 0x{byte:02x})")


def decode_lines(name: str, stream: IO[bytes], encoding: Encoding, keep_undecodable: bool = False) -> Iterator[Line]:
    r"""Yield the lines of a stream. Only "\n" ends a line: U+2028 and the like are text. A byte order mark is removed.

    Args:
        name: The file, for error messages.
        stream: The decompressed bytes of the file.
        encoding: The encoding of the file.
        keep_undecodable: Keep undecodable bytes as surrogates (`surrogateescape`) and keep NUL bytes, instead of
            replacing the line by a `BadRecord`. For CSV, where the quote that ends a field may be in such a line.
            Not for UTF-16 and UTF-32.

    Raises:
        UserError: if the file is truncated, or if it is not in UTF-16 or UTF-32 as its encoding states. The end of
            the next line is then unknown.
    """
    by_lines = not encoding.name.startswith(("utf-16", "utf-32"))  # whether the byte 0x0A always ends a line
    text_stream: Any = stream if by_lines else io.TextIOWrapper(stream, encoding.name, newline="\n")
    line_end: Any = b"\n" if by_lines else "\n"
    codec = "utf-8" if encoding.name == "utf-8-sig" else encoding.name
    errors = "surrogateescape" if keep_undecodable else "strict"
    number, limit = 0, MAX_RECORD_BYTES
    try:
        while line := text_stream.readline(limit):
            number += 1
            if len(line) == limit and not line.endswith(line_end):
                while (line := text_stream.readline(SKIP_BYTES)) and not line.endswith(line_end):
                    pass
                yield number, OVERSIZE
                continue
            if by_lines:
                if number == 1:
                    require_not_utf16(name, line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                try:
                    line = line.decode(codec, errors)
                except UnicodeError as error:
                    byte = line[error.start] if isinstance(error, UnicodeDecodeError) else None
                    yield number, undecodable(codec, byte)
                    continue
            elif number == 1:
                line = line.removeprefix("\ufeff")
            yield number, line if keep_undecodable or "\x00" not in line else NUL_BYTE
    except UnicodeError as error:
        remedy = "the file is damaged, or --encoding has to name another encoding"
        raise UserError(f"{name}:{number + 1}: not valid {encoding.name}: {remedy}") from error
    except EOFError as error:
        raise UserError(f"{name}:{number + 1}: {error}") from error
    finally:
        if not by_lines:
            text_stream.detach()  # else it would close the stream, which belongs to the caller


def require_line_feeds(name: str, lines: Iterator[Line], may_be_one_line: bool = False) -> Iterator[Line]:
    r"""Yield the same lines, unless their only line ends are "\r", as in files of old spreadsheet programs.

    Args:
        name: The file, for error messages.
        lines: The lines from `decode_lines`.
        may_be_one_line: Accept a file of one line that has "\r" inside and ends in "\n". Otherwise such a file is
            refused, because a program may have appended the "\n" to "\r" lines; to detect it, the second line is
            read before the first one is yielded.

    Raises:
        UserError: if the first line has "\r" inside and is the whole file.
    """
    first = list(islice(lines, 1))
    if first and isinstance(line := first[0][1], str) and "\r" in line.rstrip("\r\n"):
        if line.endswith("\n") and not may_be_one_line:
            first += islice(lines, 1)
        if not line.endswith("\n") or not (may_be_one_line or len(first) > 1):
            raise UserError(f"{name}: its lines end in \\r alone; convert the file to lines that end in \\n first")
    yield from first
    yield from lines
