"""Which columns of a file a reader reads as what."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from bertie.errors import UserError
from bertie.tasks.data.rows import PROBED_ROWS, Row, is_stdin


@runtime_checkable
class NamesColumns(Protocol):
    """A reader of files with columns."""

    def columns(self, path: Path) -> dict[str, str]:
        """Return which column of a file is read as what, by its use: {"text": "sentence", "label": "label"}.

        Raises UserError and UsageError as `Reader.read`.
        """
        ...


def columns_read(reader: object, path: Path) -> dict[str, str]:
    """Return which columns of a file a reader reads as what; nothing of stdin, which can be read only once."""
    return reader.columns(path) if isinstance(reader, NamesColumns) and not is_stdin(path) else {}


def columns_of(rows: Iterable[Row | UserError], uses: Callable[[Row], dict[str, str]]) -> dict[str, str]:
    """Return what `uses` returns for the first row that has the columns, among those at the start of a file."""
    for row in islice(rows, PROBED_ROWS):
        with suppress(UserError):
            if isinstance(row, Row):
                return uses(row)
    return {}
