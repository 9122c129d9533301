"""Sentence splitting: the library sentencex (rules and abbreviations per language), plus rules for other scripts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

MAX_SENTENCE_CHARACTERS = 10_000  # longer sentences are split, which bounds the tokenizer's memory
MAX_SEGMENT_CHARACTERS = 4_000  # for one call of sentencex on non-ASCII text: its time grows with the square
MAX_COMBINING_MARKS = 64  # combining characters that stay with their base character where text is split

# Marks that always end a sentence, with the closing quotes and brackets that follow: CJK, Tibetan, Khmer, Myanmar,
# Indic, Arabic, Armenian, Ethiopic, Mongolian. The full stop of the Latin script is ambiguous: sentencex decides.
SENTENCE_ENDS = re.compile("[。！？｡︒།༎༏༐༑។៕៖။।॥۔؟։።፧፨᠃᠉꓿꘎꘏]+[」』”’》〉）】〕\"')\\]]*")
# Thai and Lao end a sentence or a clause with a space, and write no spaces between words.
THAI_SPACES = re.compile("(?<=[\u0e00-\u0eff]) +(?=[\u0e00-\u0eff])")
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese, which have no blanks between words, for a class of characters."""
NON_ASCII_SPACE = re.compile("[^\\S\\x00-\\x7f]")  # BERT treats all spaces alike, and some make sentencex panic
MIN_CLAUSE_CHARACTERS = 40  # shorter Thai and Lao clauses are joined with the next


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split text into sentences.

    A line end always ends a sentence. Scripts with their own sentence marks are split at these marks, in any language.

    Args:
        text: The text.
        language: ISO 639 code. sentencex uses its general rules for languages that it does not know.

    Returns:
        The sentences in order, stripped and not empty, each of at most MAX_SENTENCE_CHARACTERS characters.
    """
    # Line by line: sentencex keeps single line ends inside a sentence, but headings and list items are sentences here.
    sentences: list[str] = []
    for line in text.splitlines():
        segments = [line] if line.isascii() else _split_at_marks(NON_ASCII_SPACE.sub(" ", line))
        for part in segments:
            for sentence in _segment(language, part):
                sentences += [sentence] if len(sentence) <= MAX_SENTENCE_CHARACTERS else split_long_text(sentence)
    stripped = (sentence.strip() for sentence in sentences)
    return [sentence for sentence in stripped if sentence]


def _segment(language: str, part: str) -> list[str]:
    """Call sentencex; return the text unsplit if it panics."""
    try:
        return segment(language, part)
    except BaseException as error:  # a Rust panic is not an Exception
        if type(error).__name__ != "PanicException":
            raise
        return [part]


def _split_at_marks(line: str) -> Iterator[str]:
    """Split a line after unambiguous sentence marks, and long parts further."""
    start = 0
    for end in SENTENCE_ENDS.finditer(line):
        yield from _split_clauses(line[start : end.end()])
        start = end.end()
    yield from _split_clauses(line[start:])


def _split_clauses(text: str) -> Iterator[str]:
    """Split text at Thai and Lao spaces, and parts longer than MAX_SEGMENT_CHARACTERS."""
    clause = ""
    for part in THAI_SPACES.split(text):
        clause = f"{clause} {part}" if clause else part
        if len(clause) >= MIN_CLAUSE_CHARACTERS:
            yield from split_long_text(clause, MAX_SEGMENT_CHARACTERS)
            clause = ""
    yield from split_long_text(clause, MAX_SEGMENT_CHARACTERS)


def split_long_text(text: str, max_characters: int = MAX_SENTENCE_CHARACTERS) -> Iterator[str]:
    """Split text into parts of at most `max_characters` that concatenate to the text.

    Splits after the last space of a part. A part without a space is split anywhere, but not between a character and
    its combining marks, unless it has more than MAX_COMBINING_MARKS.
    """
    start = 0
    while len(text) - start > max_characters:
        stop = text.rfind(" ", start, start + max_characters) + 1
        if not stop:
            base = stop = start + max_characters
            while base > start + 1 and stop - base < MAX_COMBINING_MARKS and unicodedata.combining(text[base]):
                base -= 1
            stop = stop if unicodedata.combining(text[base]) else base
        yield text[start:stop]
        start = stop
    yield text[start:]
