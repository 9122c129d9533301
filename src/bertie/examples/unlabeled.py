"""Texts, or sentences of words, without labels: one per line, per row of a table, or per sentence of a CoNLL file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, join_names, naming
from bertie.examples.conll import ConllFile
from bertie.examples.in_memory import require_list
from bertie.examples.reader import with_columns
from bertie.examples.rows import (
    Row,
    file_format,
    named_columns,
    read_rows,
    require_file,
    require_string,
    row_from_python,
)
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import cola_columns
from bertie.files.sources import FORMATS, KNOWN
from bertie.tokenizers.batching import batches

Text = str | tuple[str, ...]
"""A text, or its words if the file separates them."""
TextRows = list[Text | UserError]
MAX_CHARACTERS = 1 << 18  # of the texts of a block
_NAMES = ("text", "sentence", "tokens", "words")
_KINDS = {str: "a text", tuple: "a list of words"}


@dataclass(frozen=True)
class UnlabeledReader:
    """Reads texts. A .txt file, like stdin ("-"), has one text per line. Files of unknown formats are read as CoNLL files."""

    text: str = ""
    """Column of the text, or key of a text or a list of words in .jsonl (empty: text, sentence, tokens or words)."""
    word: int = -1
    """Column of the word in a CoNLL file, from 0; -1: the second in .conllu files, else the first."""

    def stream(self, path: Path) -> Iterator[Text | UserError]:
        """Read the file lazily and in order, either texts or lists of words, with an error in place of each bad row.

        Raises:
            UsageError: if the file does not exist, or the column of the text is unclear.
            UserError: if the file as a whole cannot be read.
        """
        if (format := file_format(path)) in FORMATS:
            yield from self._read_rows(path)
        elif format in ("json", "zip"):
            raise UsageError(f"{path}: give a file of one of these formats: {KNOWN}; or .conllu")
        else:
            require_file(path)
            for sentence in ConllFile(path, self.word, tagged=False).sentences():
                yield sentence.words if isinstance(sentence, TaggedSentence) else sentence

    def values(self, given: Iterable[Any]) -> Iterator[Any]:
        """Return texts in memory: those of rows, such as dicts and frames, and other values as they are.

        Raises:
            UsageError: The column of the text is unclear.
            UserError: A row has no text.
        """
        for number, value in enumerate(require_list(given), 1):
            if isinstance(value, dict):
                row = row_from_python(value, f"text {number}")
                with naming(row.place):
                    column = self._column(row)
                value = _text_of(row, column)
            yield value

    def _read_rows(self, path: Path) -> Iterator[Text | UserError]:
        kind: type | None = None
        for row, column in with_columns(read_rows(path, cola_columns), path, self._column):
            try:
                text = _text_of(row, column) if isinstance(row, Row) else row
                kind = kind or (type(text) if isinstance(row, Row) else None)
                if isinstance(row, Row) and type(text) is not kind:
                    problem = f"{column!r} is {_KINDS[type(text)]}, where earlier rows have {_KINDS[kind]}"
                    raise UserError(f"{row.place}: {problem}")
            except UserError as error:
                text = error
            yield text

    def _column(self, row: Row) -> str:
        columns = [self.text] if self.text else named_columns(row.values, _NAMES)
        if len(columns) != 1 or columns[0] not in row.values:
            problem = f"no column {self.text!r}" if self.text else "cannot tell which column is the text"
            remedy = "Name one with --text; in Python, give the column by itself"
            raise UsageError(f"{problem}; its columns are: {join_names(row.values)}", remedy)
        return columns[0]


def _text_of(row: Row, column: str) -> Text:
    value: Any = row.values.get(column)
    if isinstance(value, list):
        return tuple(require_string(word, column, row.place) for word in value)
    return require_string(value, column, row.place)


def text_blocks(rows: Iterable[Text | UserError], size: int) -> Iterator[TextRows]:
    """Group rows into blocks of at most `size` rows, or fewer if their texts are long."""
    return batches(rows, MAX_CHARACTERS, _characters, size)


def _characters(row: Text | UserError) -> int:
    return 0 if isinstance(row, UserError) else len(row) if isinstance(row, str) else sum(map(len, row))
