"""The encoding of a text file: stated by its first bytes, else UTF-8 if possible, else guessed."""

from __future__ import annotations

import codecs
import io
from dataclasses import dataclass
from typing import IO, Any

from bertie.base.errors import UsageError, UserError

SAMPLE_BYTES = 1 << 20  # the encoding is detected from this many bytes at the start of a file
BYTE_ORDER_MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The candidates for text that is not UTF-8. In all of them the byte 0x0A ends a line and ASCII is ASCII. The code pages
# of DOS and of terminals are left out: in them, text of any language looks plausible.
WESTERN = "cp1252"
CANDIDATES = [
    WESTERN,
    *("cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874"),
    *("koi8_r", "koi8_u", "shift_jis", "cp932", "euc_jp", "iso2022_jp", "gb18030", "big5", "cp949", "euc_kr"),
]
WESTERN_MARGIN = 0.02  # scores this close are a tie, which the Western European code page wins: it is the most common
MAX_NUL_SHARE = 0.05  # share of NUL bytes above which a file is binary
MAX_BROKEN_SHARE = 0.5  # share of invalid non-ASCII lines up to which a file is UTF-8: valid UTF-8 by chance is rare


@dataclass(frozen=True)
class Encoding:
    """An encoding by its Python name. guessed: whether the file does not state it and it is not UTF-8."""

    name: str
    guessed: bool = False


UTF8 = Encoding("utf-8")


def detect_stream(name: str, stream: IO[bytes]) -> tuple[Encoding, IO[bytes]]:
    """Detect the encoding of a stream.

    Args:
        name: The file, for error messages.
        stream: The decompressed bytes of the file. Up to SAMPLE_BYTES are read.

    Returns:
        The encoding, and a stream that reads all bytes from the start.

    Raises:
        UserError: if the file is not text in any known encoding.
    """
    sample, error = _read_sample(stream)
    encoding = detect(sample)
    if encoding is None and error is None:
        raise UserError(f"{name}:1: not text in a known encoding: name the encoding with --encoding")
    # With an error, the sample may be too short to tell: the error is then raised where it occurred.
    return encoding or UTF8, io.BufferedReader(_Rejoined(sample, error, stream), 1 << 20)


def require(name: str) -> Encoding:
    """Return the encoding of this name, or raise a UsageError if Python does not have it."""
    try:
        codec = codecs.lookup(name)
        if not codec._is_text_encoding:  # such as hex, from bytes to bytes
            raise LookupError(name)
        return Encoding(codec.name)
    except LookupError as error:
        raise UsageError(
            f"--encoding {name}: no such encoding; examples are utf-8, windows-1252 and gb18030"
        ) from error


def detect(sample: bytes) -> Encoding | None:
    """Return the encoding of text that begins with `sample` (up to SAMPLE_BYTES); None if it is not text in any."""
    for mark, name in BYTE_ORDER_MARKS:
        if sample.startswith(mark):
            return Encoding(name)
    if sample.count(b"\x00") > len(sample) * MAX_NUL_SHARE:
        return None
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    if len(sample) >= SAMPLE_BYTES and lines:
        lines.pop()  # it may end in the middle of a character
    if sum(line.decode(errors="ignore").encode() != line for line in lines) <= MAX_BROKEN_SHARE * len(lines):
        return UTF8
    return _guess(b"\n".join(lines[:2000]))


def _guess(lines: bytes) -> Encoding | None:
    """lines: those beyond ASCII. ASCII tells nothing about the code page and would make all candidates look alike."""
    import charset_normalizer

    matches = charset_normalizer.from_bytes(lines, cp_isolation=CANDIDATES)
    best = matches.best()
    if best is None:
        return None
    western = next((match for match in matches if WESTERN in match.could_be_from_charset), None)
    if (
        western
        and western.coherence >= best.coherence - WESTERN_MARGIN
        and western.chaos <= best.chaos + WESTERN_MARGIN
    ):
        return Encoding(WESTERN, guessed=True)
    return Encoding(best.encoding, guessed=True)


def _read_sample(stream: IO[bytes]) -> tuple[bytes, Exception | None]:
    """Return up to SAMPLE_BYTES, and the error that ended the reading early."""
    parts: list[bytes] = []
    size = 0
    try:
        while size < SAMPLE_BYTES and (part := stream.read(1 << 16)):
            parts.append(part)
            size += len(part)
    except Exception as error:
        return b"".join(parts), error
    return b"".join(parts), None


class _Rejoined(io.RawIOBase):
    """A sample of a stream, then the error that ended the sample, or the rest of the stream."""

    def __init__(self, sample: bytes, error: Exception | None, rest: IO[bytes]):
        self.sample, self.error, self.rest = io.BytesIO(sample), error, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self.sample.read(len(buffer))
        if not part:
            if self.error:
                raise self.error
            part = self.rest.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)
