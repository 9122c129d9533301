"""Blocks of texts that are read, computed and written together, so that memory does not grow with a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bertie.errors import UserError
from bertie.tasks.data.unlabeled import Text
from bertie.text.batching import batches

MAX_CHARACTERS = 1 << 18  # of the texts of a block

TextRows = list[Text | UserError]


def text_blocks(rows: Iterable[Text | UserError], size: int) -> Iterator[TextRows]:
    """Group rows into blocks of at most `size` rows, or fewer if their texts are long."""
    return batches(rows, MAX_CHARACTERS, _characters, size)


def _characters(row: Text | UserError) -> int:
    return 0 if isinstance(row, UserError) else len(row) if isinstance(row, str) else sum(map(len, row))
