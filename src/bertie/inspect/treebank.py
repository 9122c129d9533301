"""Sentences with dependency trees, from files in CoNLL-U format (universaldependencies.org/format.html)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertie.base.errors import UserError
from bertie.examples.rows import parse_index, read_lines, require_file

COLUMNS = 10
FORM, UPOS, HEAD, RELATION = 1, 3, 6, 7
_Line = tuple[int, list[str]]  # the number of a line and its columns


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
    errors: list[UserError] = []
    number = 0
    for number, line in read_lines(path):
        if isinstance(line, UserError):
            errors.append(line)
        elif not line.strip():
            yield from _end_sentence(path, sentence, errors)
            sentence, errors = [], []
        elif not line.startswith("#"):
            columns = line.rstrip("\r\n").split("\t")
            if columns[0].isdecimal() or not _is_skipped(columns[0]):
                sentence.append((number, columns))
    if not number:
        raise UserError(f"{path} is empty")
    yield from _end_sentence(path, sentence, errors)


def _is_skipped(word_id: str) -> bool:
    """Return whether a line is a multiword token ("3-4") or an empty node ("8.1")."""
    first, _, second = word_id.replace(".", "-").partition("-")
    return first.isdecimal() and second.isdecimal()


def _end_sentence(path: Path, lines: list[_Line], errors: list[UserError]) -> Iterator[ParsedSentence | UserError]:
    if errors:
        yield errors[0]
    elif lines:
        try:
            yield _to_sentence(path, lines)
        except UserError as error:
            yield error


def _to_sentence(path: Path, lines: list[_Line]) -> ParsedSentence:
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
    return min(
        ancestor[ancestor >= 0].tolist(), default=None
    )  # farther than any path: all words of cycles, and no others
