"""Texts, or sentences of words, without labels: one per line, per row of a table, or per sentence of a CoNLL file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, join_names, naming
from bertie.examples.conll import ConllFile
from bertie.examples.in_memory import require_list
from bertie.examples.reader import DataFormat, KindFacts, Reader, resolved_alike
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
_KINDS = {str: "a text", list: "a list of words"}


@dataclass(frozen=True)
class UnlabeledReader:
    """Reads texts. A .txt file, like stdin ("-"), has one text per line. Files of unknown formats are read as CoNLL files."""

    text: str = ""
    """Column of the text, or key of a text or a list of words in .jsonl (empty: text, sentence, tokens or words)."""
    word: int = -1
    """Column of the word in a CoNLL file, from 0; -1: the second in .conllu files, else the first."""
    facts, data_format, label_rules = KindFacts(headerless=cola_columns), DataFormat(), None
    resolved = resolved_alike

    def stream(self, path: Path) -> Iterator[Text | UserError]:
        """Read a file lazily and in order, either texts or lists of words: see `Reader.stream`."""
        return Reader(self).stream(path)

    def values(self, texts: Iterable[Any]) -> Iterator[Any]:
        """Return texts in memory: the texts of rows, such as dicts and frames, and other values, also errors, as they are.

        Raises:
            UsageError: The column of the text is unclear.
            UserError: A row has no text.
        """
        for number, value in enumerate(require_list(texts), 1):
            if isinstance(value, dict):
                row = row_from_python(value, f"text {number}")
                with naming(row.place):
                    column = self.columns(row, labeled=False)
                value = self.to_example(row, column, False, {})
            yield value

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:  # noqa: ARG002
        """Yield rows, or lists of words, lazily and in order."""
        if (format := file_format(path)) in FORMATS:
            return read_rows(path, cola_columns)
        if format in ("json", "zip"):
            raise UsageError(f"{path}: give a file of one of these formats: {KNOWN}; or .conllu")
        require_file(path)
        sentences = ConllFile(path, self.word, tagged=False).sentences()
        return (sentence.words if isinstance(sentence, TaggedSentence) else sentence for sentence in sentences)

    def from_python(self, value: Any, place: str, source: str) -> Any:  # noqa: ARG002
        return value

    def columns(self, row: Row, labeled: bool) -> str:  # noqa: ARG002
        columns = [self.text] if self.text else named_columns(row.values, _NAMES)
        if len(columns) != 1 or columns[0] not in row.values:
            problem = f"no column {self.text!r}" if self.text else "cannot tell which column is the text"
            remedy = "Name one with --text; in Python, pass the column itself"
            raise UsageError(f"{problem}; its columns are: {join_names(row.values)}", remedy)
        return columns[0]

    def to_example(self, row: Row, columns: str, labeled: bool, seen: dict[Any, Any]) -> Text:  # noqa: ARG002
        value, place = row.values.get(columns), row.place
        words = value if isinstance(value, list) else [value]
        texts = tuple(require_string(word, columns, place) for word in words)
        kind = _KINDS[type(value)]
        if (earlier := seen.setdefault("kind", kind)) != kind:
            raise UserError(f"{place}: {columns!r} is {kind}, where earlier rows have {earlier}")
        return texts if isinstance(value, list) else texts[0]


def text_blocks(rows: Iterable[Text | UserError], size: int) -> Iterator[TextRows]:
    """Group rows into blocks of at most `size` rows, or fewer if their texts are long."""
    return batches(rows, MAX_CHARACTERS, _characters, size)


def _characters(row: Text | UserError) -> int:
    return 0 if isinstance(row, UserError) else len(row) if isinstance(row, str) else sum(map(len, row))
