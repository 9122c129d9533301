"""The items of a file, block by block, so that memory does not grow with the file, and warnings about the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from bertie.base import console
from bertie.base.contracts import Sequence
from bertie.base.errors import SHOWN, UsageError, UserError, first_few
from bertie.examples.unlabeled import Text, UnlabeledReader
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

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


@dataclass
class TextFile:
    """A file of texts. Counts what it reads and leaves out."""

    path: Path
    """Texts in a format that `UnlabeledReader` knows."""
    tokenizer: Tokenizer
    """The model's tokenizer."""
    max_length: int
    """Longer texts are truncated to this number of tokens."""
    column: str = ""
    """Column of the text; empty: as `UnlabeledReader` finds it."""
    max_texts: int = 0
    """Read at most this number of texts; 0: all."""
    texts: int = 0
    """Texts read so far."""
    tokens: int = 0
    """Their tokens, special tokens included."""
    truncated: int = 0
    """Texts that were truncated."""
    empty: int = 0
    """Texts without tokens, which are left out."""
    unreadable: int = 0
    """Rows that cannot be read, which are left out. Known after the last block."""

    def blocks(self) -> Iterator[list[Sequence]]:
        """Read the file and yield its texts as sequences. The last step warns about what was left out.

        Raises:
            UsageError: There is no such file, or the column of the text is unclear.
            UserError: No text can be read.
        """
        readable = Readable[Text](self.path, "text")
        for block in readable.blocks(self._rows()):
            if sequences := self._encode(block):
                yield sequences
        self.unreadable = readable.unreadable
        if not self.texts:
            raise UserError(f"{self.path}: no texts in it")
        if self.empty:
            console.warn(f"{self.path}: {console.plural(self.empty, 'text')} without tokens")
        if self.truncated:
            console.warn(
                f"{self.path}: truncated {self.truncated:,} of {self.texts:,} texts to {self.max_length} tokens"
            )

    def first_texts(self) -> list[str]:
        """Return the texts of the first block, without counts and warnings. Raises the same errors as `blocks`."""
        with console.silenced():
            blocks = Readable[Text](self.path, "text").blocks(self._rows())
            return [_joined(text) for text in next(blocks)]

    def facts(self) -> dict[str, Any]:
        """Return the file's name and the numbers, for inspect.json."""
        counts = ("texts", "tokens", "truncated", "empty", "unreadable")
        return {"file": self.path.name, **{name: getattr(self, name) for name in counts}}

    def _rows(self) -> Iterator[Text | UserError]:
        rows = UnlabeledReader(self.column).stream(self.path)
        try:
            yield from islice(rows, self.max_texts or None)
        except UsageError as error:  # here, --text is the file
            raise UsageError(str(error).replace("with --text", "with --text-column")) from error

    def _encode(self, texts: list[Text]) -> list[Sequence]:
        sequences = truncation.encode(self.tokenizer, list(map(_joined, texts)), max_length=self.max_length)
        special = truncation.special_tokens(self.tokenizer, 1)
        kept = [sequence for sequence in sequences if len(sequence) > special]
        self.empty += len(sequences) - len(kept)
        self.texts += len(kept)
        self.tokens += sum(map(len, kept))
        self.truncated += sum(sequence.truncated > 0 for sequence in kept)
        return kept


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else " ".join(text)
