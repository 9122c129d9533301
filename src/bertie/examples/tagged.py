"""Sentences, or whole documents, with one tag per word."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

from bertie.examples.words import TextRange, split_words


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence and its tags.

    Attributes:
        words: The words.
        tags: One tag per word; None if they are unknown.
        source: The file and line of the first word ("test.conll:120"), for messages.
        text: The text that the words are from; None: there are only words.
        places: For each word its first and last character (exclusive) in `text`.
        lines: The line of each word, if each has its own.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    source: str
    text: str | None = field(default=None, repr=False)
    places: tuple[TextRange, ...] = field(default=(), repr=False)
    lines: Many[int] = field(default=(), repr=False, compare=False)

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.characters()[0],)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.tags

    def place(self, word: int) -> str:
        """Return where a word is, for messages: its file and line, or its number, from 1."""
        if not self.lines:
            return f"{self.source}, word {word + 1}"
        return f"{self.source.rpartition(':')[0]}:{self.lines[word]}"

    def characters(self) -> tuple[str, tuple[TextRange, ...]]:
        """Return the text, and the place of each word in it. Without a text, words are joined by spaces."""
        if self.text is not None:
            return self.text, self.places
        places, start = [], 0
        for word in self.words:
            places.append((start, start + len(word)))
            start += len(word) + 1
        return " ".join(self.words), tuple(places)


def sentence_of_text(text: str, source: str, places: Many[TextRange] | None = None) -> TaggedSentence:
    """Return the words of a text, without tags. places: where they are; None: as `split_words` finds them."""
    places = split_words(text) if places is None else places
    return TaggedSentence(tuple(text[start:end] for start, end in places), None, source, text, tuple(places))
