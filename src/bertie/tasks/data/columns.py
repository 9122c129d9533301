"""Sentences of words with a tag each: CoNLL's columns (any number, the tag last), and .jsonl rows of "tokens" and "tags"."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import Row, lines, require_file, rows, several, string

_WORDS = ("tokens", "words")
_TAGS = ("tags", "ner_tags", "labels", "ner")
DOCUMENT = "-DOCSTART-"


@dataclass(frozen=True)
class Sentence:
    """words and, where they are known, as many tags. `source` is for messages: "test.conll:120"."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    source: str


@dataclass(frozen=True)
class TagColumns:
    word: int = 0
    """Column of the word in a file of columns, from 0 (CoNLL-U's words are in 1)."""
    tag: int = -1
    """Column of the tag, from 0, or from the end: -1 is the last (CoNLL-U's parts of speech are in 3)."""


@dataclass(frozen=True)
class Sentences:
    """Lines of columns between tabs or blanks; an empty line, or -DOCSTART-, ends a sentence. Of .conllu only words count."""

    columns: TagColumns = TagColumns()

    def read(self, path: Path) -> Iterator[Sentence | UserError]:
        """With tags. Errors, raised: UsageError for a missing file."""
        return self._found(path, tagged=True)

    def stream(self, path: Path) -> Iterator[Sentence | UserError]:
        """For prediction: a line of one column is a word without a tag."""
        return self._found(path, tagged=False)

    def values(self, given: Iterable[Any]) -> Iterator[Sentence]:
        """From dicts ({"tokens": […], "tags": […]}), lists of words, texts (words between blanks) or Sentences."""
        for number, value in enumerate(several(given), 1):
            place = f"example {number}"
            if isinstance(value, str):
                value = value.split()
            if isinstance(value, list | tuple):
                value = {"tokens": list(value)}
            if isinstance(value, dict):
                value = _from_row(Row(value, place, place), tagged=False)
            elif not isinstance(value, Sentence):
                raise UserError(f"{place}: expected a dict, a list of words or a Sentence, got {type(value).__name__}")
            yield value

    def _found(self, path: Path, tagged: bool) -> Iterator[Sentence | UserError]:
        if path.suffix == ".jsonl":
            for row in rows(path):
                try:
                    yield _from_row(row, tagged) if isinstance(row, Row) else row
                except UserError as error:
                    yield error
            return
        require_file(path)
        gathered: list[tuple[int, list[str]]] = []
        number = 0
        for number, line in enumerate(lines(path), 1):
            cells = _cells(line)
            if path.suffix == ".conllu" and cells and not cells[0].isdecimal():  # a comment, a range, an empty node
                continue
            if cells and cells[0] != DOCUMENT:
                gathered.append((number, cells))
            elif gathered:
                yield self._sentence(path, gathered, tagged)
                gathered = []
        if gathered:
            yield self._sentence(path, gathered, tagged)
        if not number:
            raise UserError(f"{path} is empty")

    def _sentence(self, path: Path, gathered: list[tuple[int, list[str]]], tagged: bool) -> Sentence | UserError:
        words, tags = [], []
        width = max(self.columns.word + 1, self.columns.tag + 1 or 0, 2 if tagged else 1)
        for number, cells in gathered:
            if len(cells) < width:
                return UserError(
                    f"{path}:{number}: {len(cells)} columns, where a word and its tag take {width} "
                    f"(the sentence from line {gathered[0][0]} on)"
                )
            words.append(cells[self.columns.word])
            tags.append(cells[self.columns.tag] if len(cells) > 1 else "")
        source = f"{path.name}:{gathered[0][0]}"
        return Sentence(tuple(words), tuple(tags) if all(tags) else None, source)


def _cells(line: str) -> list[str]:
    """Of one line: between tabs where there are any, else between blanks."""
    line = line.rstrip("\r\n")
    if not line.strip():
        return []
    return [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()


def _from_row(row: Row, tagged: bool) -> Sentence:
    values, source, place = row
    words = next((values[name] for name in _WORDS if name in values), None)
    tags = next((values[name] for name in _TAGS if name in values), None)
    if not isinstance(words, list):
        raise UsageError(f'{place}: no list of words under "tokens": its keys are {", ".join(map(str, values))}')
    if not words:
        raise UserError(f"{place}: a sentence without words")
    if tags is None:
        if tagged:
            raise UserError(f"{place}: no tags")
        return Sentence(tuple(string(word, "tokens", place) for word in words), None, source)
    if not isinstance(tags, list) or len(tags) != len(words):
        have = len(tags) if isinstance(tags, list) else "no list of"
        raise UserError(f"{place}: {len(words)} words and {have} tags")
    named = (str(tag) if isinstance(tag, int) else string(tag, "tags", place) for tag in tags)
    return Sentence(tuple(string(word, "tokens", place) for word in words), tuple(named), source)
