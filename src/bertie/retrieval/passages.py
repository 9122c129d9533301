"""Passages of documents: whole sentences below one heading, as many as a model reads at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertie.base import console
from bertie.base.contracts import Document
from bertie.base.errors import UserError
from bertie.corpus import readers
from bertie.corpus.readers import ReadCounts, ReaderOptions
from bertie.corpus.sentences import UNSPACED, split_long_text, split_sentences
from bertie.examples.queries.collection import is_collection, read_texts
from bertie.files import sources
from bertie.tokenizers.tokenizer import Tokenizer

HEADING_WORDS = 30  # of the longest first line that is a heading
WHOLE_FILES = ReaderOptions(documents="file", title_field="title")
LEAST_WORDS = 4  # of a sentence that is held out as a query
_MARKDOWN = re.compile(r"^ *(```|~~~)[^`\n]*\n.*?(?:^ *\1|\Z)|^#{1,6}\s+(?=\S)", re.MULTILINE | re.DOTALL)
"""A block of code, in which # may begin a comment, or the start of a heading."""


@dataclass(frozen=True)
class TextPassage:
    """A part of a document."""

    document: str
    """The file, below the folder that was named, and the record, or the id, of the document."""
    heading: str
    """Its title, or the heading of its section; empty if there is none."""
    sentences: tuple[str, ...]
    """Its sentences, in order."""

    @property
    def text(self) -> str:
        """The heading and the sentences."""
        return "\n".join(filter(None, (self.heading, " ".join(self.sentences))))


def read_documents(paths: str | Path | Iterable[str | Path], options: ReaderOptions) -> Iterator[Document]:
    """Yield the documents of files and folders as `prepare` reads them, or those of folders as BEIR's, with their ids.

    At the end, warns of what cannot be read. Raises UsageError or UserError.
    """
    counts = ReadCounts()
    for path in sources.as_list(paths):
        if is_collection(Path(path)):
            yield from (Document(text, name) for name, text in read_texts(min(Path(path).glob("corpus.*"))).items())
        else:
            for source in sources.find([path]):
                for document in readers.read_sources([source], options, counts):
                    yield replace(document, source=f"{source.name}{document.source.removeprefix(source.path)}")
    for line in counts.lines():
        console.warn(line)


def read_passages(
    paths: str | Path | Iterable[str | Path], options: ReaderOptions, tokenizer: Tokenizer, tokens: int, language: str
) -> list[TextPassage]:
    """Return the `passages` of files and folders. Raises UserError if there are none; other errors as `read_documents`."""
    found = list(passages(read_documents(paths, options), tokenizer, tokens, language))
    if not found:
        raise UserError("the documents have no text")
    return found


def passages(documents: Iterable[Document], tokenizer: Tokenizer, tokens: int, language: str) -> Iterator[TextPassage]:
    """Split documents into passages of whole sentences. Each has the heading of its section.

    The heading is the first line of a document, if it is short and others follow, or that of a section of Markdown.

    Args:
        documents: The documents.
        tokenizer: The tokenizer that counts tokens.
        tokens: Most tokens of a passage, without special tokens. A longer sentence is split.
        language: ISO 639 code of the language, for the ends of sentences.

    Raises:
        UserError: A text is invalid.
    """
    for document in documents:
        for heading, body in _sections(document.text):
            used, group = len(tokenizer.encode([heading])[0]), list[str]()
            size = used
            for sentence, length in _fitting(
                split_sentences(body, language), tokenizer, max(tokens - used, tokens // 2)
            ):
                if group and size + length > tokens:
                    yield TextPassage(document.source, heading, tuple(group))
                    group, size = [], used
                group.append(sentence)
                size += length
            if group or heading:
                yield TextPassage(document.source, heading, tuple(group))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the heading and the text of each section."""
    headings = [match for match in _MARKDOWN.finditer(text) if not match[1]]
    starts, ends = [0, *(match.end() for match in headings)], [*(match.start() for match in headings), len(text)]
    for section in map(slice, starts, ends):
        first, _, rest = text[section].strip().partition("\n")
        if rest.strip() and _count_words(first) <= HEADING_WORDS:
            yield " ".join(first.split()), rest
        elif first:
            yield "", text[section]


def long_sentences(sentences: Sequence[str]) -> list[int]:
    """Return the numbers of the sentences with at least LEAST_WORDS words."""
    return [number for number, sentence in enumerate(sentences) if _count_words(sentence) >= LEAST_WORDS]


def _count_words(text: str) -> int:
    """Count words; in text without blanks between words, such as Chinese, characters."""
    return len(re.sub(f"[{UNSPACED}]", " x ", text).split())


def _fitting(sentences: list[str], tokenizer: Tokenizer, most: int) -> Iterator[tuple[str, int]]:
    """Yield sentences with their numbers of tokens, and parts of those that have more than `most`."""
    for sentence, ids in zip(sentences, tokenizer.encode(sentences), strict=True):
        if len(ids) <= most:
            yield sentence, len(ids)
        else:
            parts = [part.strip() for part in split_long_text(sentence, max(1, len(sentence) * most // len(ids) // 2))]
            yield from ((part, len(ids)) for part, ids in zip(parts, tokenizer.encode(parts), strict=True))
