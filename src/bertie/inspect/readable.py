"""What an input file has that can be read, and warnings about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from bertie import console
from bertie.errors import UserError
from bertie.tasks.data.rows import SHOWN, first_few

AT_ONCE = 1024  # sentences or texts that are read, sorted by length and computed together
T = TypeVar("T")


@dataclass
class Readable(Generic[T]):
    """Counts the items of a file, and those that cannot be read."""

    path: Path
    """The file."""
    what: str
    """What an item is, such as "sentence"."""
    count: int = 0
    """Readable items so far."""
    unreadable: int = 0
    """Other items so far."""
    messages: list[str] = field(default_factory=list)
    """What is wrong with the first of these."""

    def blocks(self, items: Iterator[T | UserError]) -> Iterator[list[T]]:
        """Yield the readable items in blocks. The last step warns about the others.

        Raises:
            UserError: No item is readable.
        """
        while block := list(islice(items, AT_ONCE)):
            good = [item for item in block if not isinstance(item, UserError)]
            bad = [str(item) for item in block if isinstance(item, UserError)]
            self.count += len(good)
            self.unreadable += len(bad)
            self.messages += bad[: SHOWN - len(self.messages)]
            if good:
                yield good
        if not self.count:
            raise UserError(self.messages[0] if self.messages else f"{self.path}: no {self.what}s in it")
        if self.unreadable:
            shown = first_few(self.messages, self.unreadable)
            console.warn(f"{self.path}: {console.plural(self.unreadable, self.what)} cannot be read: {shown}")

    def facts(self) -> dict[str, Any]:
        """Return the file's name and the numbers, for inspect.json."""
        return {"file": self.path.name, f"{self.what}s": self.count, "unreadable": self.unreadable}


def warn_left_out(path: Path, counts: Mapping[tuple[str, str], int]) -> None:
    """Warn about readable items that are not used. `counts`: how many, by what they are and why they are left out."""
    for (what, reason), count in counts.items():
        if count:
            console.warn(f"{path}: left out {console.plural(count, what)} {reason}")
