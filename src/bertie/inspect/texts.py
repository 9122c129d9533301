"""The items of a file, block by block, so that memory does not grow with the file, and warnings about the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

from bertie.base import console
from bertie.base.contracts import Sequence
from bertie.base.errors import SHOWN, UsageError, UserError, first_few
from bertie.examples.unlabeled import Text, UnlabeledReader
from bertie.inspect.tables import InputFacts
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer

P = ParamSpec("P")
AT_ONCE = 1024  # sentences or texts that are read, sorted by length and computed together
T = TypeVar("T")


def parsed(parse: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | UserError:
    """Return the item that `parse` returns, or the error that it raises."""
    try:
        return parse(*args, **kwargs)
    except UserError as error:
        return error


@dataclass
class Readable(Generic[T]):
    """Counts the items of a file, and those that cannot be read."""

    path: Path
    """The file."""
    what: str
    """Name of an item, such as "sentence"."""
    count: int = 0
    """Readable items so far."""
    unreadable: int = 0
    """Other items so far."""
    messages: list[str] = field(default_factory=list)
    """The errors of the first of these."""

    def blocks(self, items: Iterator[T | UserError]) -> Iterator[list[T]]:
        """Yield the readable items in blocks.

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

    def warn(self, left_out: Mapping[tuple[str, str], int]) -> None:
        """Warn about unreadable items, and about others that are not used.

        Args:
            left_out: Number of items that are not used, by their name and the reason.
        """
        if self.unreadable:
            shown = first_few(self.messages, self.unreadable)
            console.warn(f"{self.path}: {console.plural(self.unreadable, self.what)} cannot be read: {shown}")
        for (what, reason), count in left_out.items():
            if count:
                console.warn(f"{self.path}: left out {console.plural(count, what)} {reason}")

    def facts(self) -> InputFacts:
        """Return the file's name and the numbers, for inspect.json."""
        return {"file": self.path.name, f"{self.what}s": self.count, "unreadable": self.unreadable}


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
    counts: Counter[str] = field(
        init=False, default_factory=lambda: Counter(texts=0, tokens=0, truncated=0, empty=0, unreadable=0)
    )
    """Texts read so far; their tokens, special tokens included; texts that were truncated; texts without tokens and rows that
    cannot be read, which are both left out."""

    def blocks(self, warn: bool = False) -> Iterator[list[Sequence]]:
        """Read the file and yield its texts as sequences. `warn`: the last step warns about the texts that were left out.

        Raises:
            UsageError: There is no such file, or the column of the text is unclear.
            UserError: No text can be read.
        """
        readable = Readable[Text](self.path, "text")
        for block in readable.blocks(self._rows()):
            if sequences := self._encode(block):
                yield sequences
        self.counts["unreadable"] = readable.unreadable
        texts, truncated = self.counts["texts"], self.counts["truncated"]
        if not texts:
            raise UserError(f"{self.path}: no texts in it")
        if warn:
            readable.warn({("text", "without tokens"): self.counts["empty"]})
            if truncated:
                console.warn(f"{self.path}: truncated {truncated:,} of {texts:,} texts to {self.max_length} tokens")

    def first_texts(self) -> list[str]:
        """Return the texts of the first block. Raises the same errors as `blocks`."""
        return list(map(_joined, next(Readable[Text](self.path, "text").blocks(self._rows()))))

    def facts(self) -> InputFacts:
        """Return the file's name and the numbers, for inspect.json."""
        return {"file": self.path.name, **self.counts}

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
        self.counts.update(texts=len(kept), tokens=sum(map(len, kept)), empty=len(sequences) - len(kept))
        self.counts["truncated"] += sum(sequence.truncated > 0 for sequence in kept)
        return kept


def _joined(text: Text) -> str:
    return text if isinstance(text, str) else " ".join(text)
