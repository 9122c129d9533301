"""Layouts: how the documents of a corpus become sequences.

A layout is a frozen dataclass with its settings. Its `epoch(corpus, tokenizer, seed, epoch)` returns a `LayoutEpoch`. To
add a layout, add a file, and its name to the union.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from bertie.batches.contiguous import DocSentences, FullSentences
from bertie.batches.sentence_pairs import SentencePairs
from bertie.batches.translations import Translations
from bertie.contracts import Sequence

Layout = SentencePairs | FullSentences | DocSentences | Translations


class LayoutEpoch(Protocol):
    """The sequences of one epoch in shuffled order, as a pure function of the corpus, the seed and the epoch.

    A window is a group of sequences that are packed together. A span says where in the corpus the tokens of a sequence
    are, and its `len` is the length of the sequence.
    """

    @property
    def windows(self) -> int:
        """Number of windows."""
        ...

    def lengths(self, window: int) -> np.ndarray:
        """Return int64 [n]: an upper bound of the length in tokens of each sequence of a window."""
        ...

    def window(self, window: int) -> list[Any]:
        """Return the spans of a window, in the order of `lengths`."""
        ...

    def sequence(self, span: Any) -> Sequence:
        """Read the tokens of a span from the corpus and build its sequence."""
        ...
