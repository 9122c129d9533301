"""Documents to sentences, with the library sentencex (rules and abbreviations per language)."""

from __future__ import annotations

from collections.abc import Iterator

from sentencex import segment  # pyright: ignore[reportAttributeAccessIssue]  # compiled, without stubs

LONGEST = 10_000  # characters; text without an end of sentence is cut here, which bounds the tokenizer's memory


def sentences(text: str, language: str = "en") -> list[str]:
    """The text's sentences in order, stripped, none empty, at most LONGEST characters; a line's end always ends one.

    language: ISO 639 code; a language that sentencex does not know is split by its general rules.
    """
    # Line by line: sentencex keeps single line ends inside a sentence, but headings and list items are sentences here.
    found = (part.strip() for line in text.splitlines() for whole in segment(language, line) for part in cut(whole))
    return [sentence for sentence in found if sentence]


def cut(text: str, longest: int = LONGEST) -> Iterator[str]:
    """Parts of at most `longest` characters, which together are the text; cut after a blank where a part has one."""
    start = 0
    while len(text) - start > longest:
        stop = text.rfind(" ", start, start + longest) + 1 or start + longest
        yield text[start:stop]
        start = stop
    yield text[start:]
