"""Documents to sentences: the library sentencex (rules and abbreviations per language), and what scripts without blanks need."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

LONGEST = 10_000  # characters; text without an end of sentence is cut here, which bounds the tokenizer's memory
LONGEST_LINE = 4_000  # characters beyond ASCII that the library gets at once: its time grows with their square
MARKS = 64  # combining characters that are kept with the one before when text is cut

# What ends a sentence whatever follows, with the closing quotes and brackets after it: CJK, Tibetan, Khmer, Myanmar,
# Indic, Arabic, Armenian, Ethiopic, Mongolian. The full stop of the Latin script is the library's business.
ENDS = re.compile("[。！？｡︒།༎༏༐༑។៕៖။।॥۔؟։።፧፨᠃᠉꓿꘎꘏]+[」』”’》〉）】〕\"')\\]]*")
# Thai and Lao end a sentence, or a clause, with a blank, and write none between words.
BLANKS = re.compile("(?<=[\u0e00-\u0eff]) +(?=[\u0e00-\u0eff])")
WIDE = re.compile("[^\\S\\x00-\\x7f]")  # blanks beyond ASCII: all the same to BERT, and the library stumbles over some
CLAUSE = 40  # characters of Thai and Lao that are not parted further


def sentences(text: str, language: str = "en") -> list[str]:
    """The text's sentences in order, stripped, none empty, at most LONGEST characters; a line's end always ends one.

    language: ISO 639 code; a language that sentencex does not know is split by its general rules. Scripts that write
    no blanks between sentences are split at their own marks, whatever the language.
    """
    # Line by line: sentencex keeps single line ends inside a sentence, but headings and list items are sentences here.
    found: list[str] = []
    for line in text.splitlines():
        parts = [line] if line.isascii() else _parted(WIDE.sub(" ", line))
        for part in parts:
            for whole in _segment(language, part):
                found += [whole] if len(whole) <= LONGEST else cut(whole)
    stripped = (sentence.strip() for sentence in found)
    return [sentence for sentence in stripped if sentence]


def _segment(language: str, part: str) -> list[str]:
    try:
        return segment(language, part)
    except BaseException as error:  # what Rust calls a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        return [part]


def _parted(line: str) -> Iterator[str]:
    """A line at its unmistakable ends of sentences, none of the parts long."""
    start = 0
    for end in ENDS.finditer(line):
        yield from _short(line[start : end.end()])
        start = end.end()
    yield from _short(line[start:])


def _short(part: str) -> Iterator[str]:
    clause = ""
    for piece in BLANKS.split(part):
        clause = f"{clause} {piece}" if clause else piece
        if len(clause) >= CLAUSE:
            yield from cut(clause, LONGEST_LINE)
            clause = ""
    yield from cut(clause, LONGEST_LINE)


def cut(text: str, longest: int = LONGEST) -> Iterator[str]:
    """Parts of at most `longest` characters, which together are the text.

    Cut after a blank where a part has one, if need be anywhere, but not between a character and its accents.
    """
    start = 0
    while len(text) - start > longest:
        stop = text.rfind(" ", start, start + longest) + 1
        if not stop:
            whole = stop = start + longest
            while whole > start + 1 and stop - whole < MARKS and unicodedata.combining(text[whole]):
                whole -= 1
            stop = stop if unicodedata.combining(text[whole]) else whole
        yield text[start:stop]
        start = stop
    yield text[start:]
