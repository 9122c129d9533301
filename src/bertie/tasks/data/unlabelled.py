"""Texts, or sentences of words, and nothing else: a line, a row of a table or a sentence of a file of columns is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError
from bertie.tasks.data.conll import NOT_CONLL, ConllReader, TagColumns, TaggedSentence
from bertie.tasks.data.rows import STDIN, Row, join_names, rows, skip_until_columns, string
from bertie.tasks.data.texts import headless

Text = str | tuple[str, ...]
"""A text, or its words where the file has them apart."""
_ROWS = (".txt", ".tsv", ".csv", ".jsonl")
_NAMES = ("text", "sentence", "tokens", "words")


@dataclass(frozen=True)
class UnlabelledReader:
    """A .txt file, as stdin ("-"), has a text a line. What is no .tsv, .csv or .jsonl either has columns, as CoNLL's files."""

    text: str = ""
    """Column of the text, or key of a text or a list of words in .jsonl (empty: text, sentence, tokens or words)."""
    word: int = -1
    """Column of the word in a file of columns, from 0; -1: CoNLL-U's in .conllu, else the first."""

    def stream(self, path: Path) -> Iterator[Text | UserError]:
        """Lazily and in order, the one thing or the other; a UserError in place of what cannot be read.

        Errors, raised: UsageError for a missing file or columns that cannot be told, UserError for one that is no text.
        """
        if path.suffix in _ROWS or path == STDIN:
            yield from self._table(path)
        elif path.suffix in NOT_CONLL:
            raise UsageError(f"{path}: give a {', '.join(_ROWS)} or .conllu file, not packed")
        else:
            for found in ConllReader(TagColumns(self.word)).stream(path):
                yield found.words if isinstance(found, TaggedSentence) else found

    def _table(self, path: Path) -> Iterator[Text | UserError]:
        column = ""
        kind: type | None = None
        found = rows(path, headless)
        if path.suffix == ".jsonl":
            found = skip_until_columns(found, path, lambda row: self._column(row, row.place))
        for row in found:
            if isinstance(row, UserError):
                yield row
                continue
            column = column or self._column(row, str(path))
            try:
                value = _value(row, column)
            except UserError as error:
                yield error
                continue
            kind = kind or type(value)
            told = {str: "a text", tuple: "a list of words"}
            yield (
                value
                if type(value) is kind
                else UserError(f"{row.place}: {column!r} is {told[type(value)]}, where rows before have {told[kind]}")
            )

    def _column(self, row: Row, where: str) -> str:
        known = {name.lower(): name for name in row.values}
        found = [self.text] if self.text else [known[name] for name in _NAMES if name in known]
        if len(found) != 1 or found[0] not in row.values:
            problem = f"no column {self.text!r}" if self.text else "cannot tell which column is the text"
            raise UsageError(f"{where}: {problem}; its columns are: {join_names(row.values)}. Name one with --text")
        return found[0]


def _value(row: Row, column: str) -> Text:
    value: Any = row.values.get(column)
    if isinstance(value, list):
        return tuple(string(word, column, row.place) for word in value)
    return string(value, column, row.place)
