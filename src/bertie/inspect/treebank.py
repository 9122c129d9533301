"""Sentences with dependency trees, from files in CoNLL-U format (universaldependencies.org/format.html)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertie.base.errors import UserError, raise_error
from bertie.examples.rows import parse_index, read_lines, require_file
from bertie.inspect.texts import parsed

COLUMNS = 10
FORM, UPOS, HEAD, RELATION = 1, 3, 6, 7
_Line = tuple[int, str | UserError]
_SKIPPED = re.compile(r"#|\d+[-.]\d+(\t|$)")  # comments, multiword tokens ("3-4") and empty nodes ("8.1")


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence with its dependency tree. Words count from 0."""

    words: tuple[str, ...]
    """The words."""
    parts_of_speech: tuple[str, ...]
    """Universal part of speech of each word (UPOS)."""
    heads: tuple[int, ...]
    """Number of each word's head; -1 for the root."""
    relations: tuple[str, ...]
    """Relation of each word to its head, with its subtype: "nmod:poss"."""
    source: str
    """File and line of the first word, for messages: "dev.conllu:12"."""

    @property
    def is_tree(self) -> bool:
        """Whether it has a single root. `read_treebank` refuses cycles."""
        return self.heads.count(-1) == 1


def read_treebank(path: Path) -> Iterator[ParsedSentence | UserError]:
    """Read a treebank lazily. Comments, multiword tokens and empty nodes are skipped.

    Yields:
        The sentences, in order. A `UserError` with the line takes the place of a broken one.

    Raises:
        UsageError: There is no such file.
        UserError: The file is empty.
    """
    require_file(path)
    sentence: list[_Line] = []
    number = 0
    for number, line in read_lines(path):
        if isinstance(line, str) and not line.strip():
            if sentence:
                yield parsed(_to_sentence, path, sentence)
            sentence = []
        elif isinstance(line, UserError) or not _SKIPPED.match(line):
            sentence.append((number, line))
    if not number:
        raise UserError(f"{path} is empty")
    if sentence:
        yield parsed(_to_sentence, path, sentence)


def _to_sentence(path: Path, numbered: list[_Line]) -> ParsedSentence:
    lines = [(number, raise_error(line).rstrip("\r\n").split("\t")) for number, line in numbered]
    heads = []
    for position, (number, columns) in enumerate(lines, 1):
        place = f"{path}:{number}"
        if len(columns) != COLUMNS:
            raise UserError(f"{place}: expected {COLUMNS} columns between tabs, found {len(columns)}")
        if columns[0] != str(position):
            raise UserError(f"{place}: expected word {position} of the sentence, found {columns[0][:20]!r}")
        if not columns[FORM]:
            raise UserError(f"{place}: the word is empty")
        head = parse_index(columns[HEAD])
        if head is None or head > len(lines) or head == position:
            raise UserError(
                f"{place}: the head is {columns[HEAD][:20]!r}: expected 0 or another word, 1 to {len(lines)}"
            )
        heads.append(head - 1)
    if (word := _word_in_cycle(heads)) is not None:
        number, columns = lines[word]
        raise UserError(f"{path}:{number}: the heads lead from {columns[FORM][:20]!r} back to it: expected a tree")
    words, parts, relations = (tuple(columns[i] for _, columns in lines) for i in (FORM, UPOS, RELATION))
    return ParsedSentence(words, parts, tuple(heads), relations, f"{path.name}:{lines[0][0]}")


def _word_in_cycle(heads: list[int]) -> int | None:
    """Return the first word that is its own ancestor; None if there is no such word. `heads`: -1 for the root."""
    ancestor = np.array(heads)
    for _ in range(len(heads).bit_length()):  # each step doubles the distance: word -> ancestor
        ancestor = np.where(ancestor < 0, -1, ancestor[ancestor])
    # It is now farther than any path: these are all words of cycles, and no others.
    return min(ancestor[ancestor >= 0].tolist(), default=None)
