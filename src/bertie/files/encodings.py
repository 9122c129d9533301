"""Which encoding a file of text is in: stated by its first bytes, UTF-8 if it can be, else guessed and said."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from bertie.errors import UsageError

SAMPLE = 1 << 20  # bytes that are looked at
MARKS = (  # the longer ones first: UTF-32's begins with UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# What text that is not UTF-8 is found in: in all of them 0x0A ends a line and ASCII is ASCII. No pages of DOS and
# terminals, in which some text of any language looks well.
WESTERN = "cp1252"
GUESSES = [
    WESTERN,
    *("cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "cp874"),
    *("koi8_r", "koi8_u", "shift_jis", "cp932", "euc_jp", "iso2022_jp", "gb18030", "big5", "cp949", "euc_kr"),
]
NEAR = 0.02  # two pages as likely as each other, of which Western Europe's is the commonest by far
BINARY = 0.05  # of the bytes: with more NUL bytes it is no text
BROKEN = 0.5  # of the lines beyond ASCII: with no more that are not UTF-8, a file is UTF-8; few others are by chance


@dataclass(frozen=True)
class Encoding:
    name: str
    guessed: bool = False

    @property
    def by_lines(self) -> bool:
        """Whether the byte 0x0A is always a line's end."""
        return not self.name.startswith(("utf-16", "utf-32"))


def require(name: str) -> Encoding:
    """Errors: UsageError for an encoding that Python does not have."""
    try:
        found = codecs.lookup(name)
        if not found._is_text_encoding:  # such as hex: bytes to bytes
            raise LookupError(name)
        return Encoding(found.name)
    except LookupError as error:
        raise UsageError(f"--encoding {name}: no such encoding; utf-8, windows-1252 and gb18030 are some") from error


def detect(sample: bytes) -> Encoding | None:
    """The encoding of text that begins with `sample`, up to SAMPLE bytes; None where it is no text in any."""
    for mark, name in MARKS:
        if sample.startswith(mark):
            return Encoding(name)
    if sample.count(b"\x00") > len(sample) * BINARY:
        return None
    lines = [line for line in sample.split(b"\n") if not line.isascii()]
    if len(sample) >= SAMPLE and lines:
        lines.pop()  # it may be cut in the middle of a character
    if sum(not _is_utf8(line) for line in lines) <= BROKEN * len(lines):
        return Encoding("utf-8")
    return _guess(b"\n".join(lines[:2000]))


def _guess(lines: bytes) -> Encoding | None:
    import charset_normalizer

    # Runs of ASCII tell nothing of the page, and would make all pages look alike.
    found = charset_normalizer.from_bytes(lines, cp_isolation=GUESSES)
    best = found.best()
    if best is None:
        return None
    western = next((match for match in found if WESTERN in match.could_be_from_charset), None)
    if western and western.coherence >= best.coherence - NEAR and western.chaos <= best.chaos + NEAR:
        return Encoding(WESTERN, guessed=True)
    return Encoding(best.encoding, guessed=True)


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
