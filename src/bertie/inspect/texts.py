"""The texts of a file as sequences, block by block, so that memory does not grow with the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bertie import console
from bertie.contracts import Sequence
from bertie.errors import UsageError, UserError
from bertie.inspect.readable import Readable
from bertie.tasks.data.unlabeled import Text, UnlabeledReader
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer


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
        joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
        sequences = truncation.encode(self.tokenizer, joined, max_length=self.max_length)
        special = truncation.special_tokens(self.tokenizer, 1)
        kept = [sequence for sequence in sequences if len(sequence) > special]
        self.empty += len(sequences) - len(kept)
        self.texts += len(kept)
        self.tokens += sum(map(len, kept))
        self.truncated += sum(sequence.truncated > 0 for sequence in kept)
        return kept
