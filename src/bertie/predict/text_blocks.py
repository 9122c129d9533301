"""Blocks of texts that are read, computed and written together, so that memory does not grow with a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bertie.errors import UserError
from bertie.tasks.data.unlabeled import Text

MAX_CHARACTERS = 1 << 18  # of the texts of a block

TextRows = list[Text | UserError]


def text_blocks(rows: Iterable[Text | UserError], size: int) -> Iterator[TextRows]:
    """Group rows into blocks of at most `size` rows, or fewer if their texts are long."""
    block: TextRows = []
    characters = 0
    for row in rows:
        block.append(row)
        characters += 0 if isinstance(row, UserError) else len(row) if isinstance(row, str) else sum(map(len, row))
        if len(block) == size or characters >= MAX_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block
