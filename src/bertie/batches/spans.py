"""What the layouts share: the sequences of an epoch, and the place where a sentence that is too long is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertie.base.contracts import Sequence
from bertie.corpus.token_corpus import Corpus

WINDOW = 8192  # sequences that are paired and packed together; resuming rebuilds one window


@dataclass(frozen=True, eq=False)
class LayoutEpoch:
    """The sequences of one epoch in shuffled order, as a pure function of the corpus, the seed and the epoch.

    A window is a group of sequences that are packed together. A span says where in the corpus the tokens of a sequence
    are.
    """

    bounds: np.ndarray
    """int64 [n]: an upper bound of the length in tokens of each sequence."""
    spans: Callable[[int, slice], list[Any]]
    """Returns the spans of a window, from its number and the slice of its sequences."""
    sequence: Callable[[Any], Sequence]
    """Reads the tokens of a span from the corpus and builds its sequence."""

    @property
    def windows(self) -> int:
        """Number of windows."""
        return -(-len(self.bounds) // WINDOW)

    def lengths(self, window: int) -> np.ndarray:
        """Return int64 [n]: an upper bound of the length in tokens of each sequence of a window."""
        return self.bounds[window * WINDOW : (window + 1) * WINDOW]

    def window(self, window: int) -> list[Any]:
        """Return the spans of a window, in the order of `lengths`."""
        return self.spans(window, slice(window * WINDOW, (window + 1) * WINDOW))


def last_word_start(corpus: Corpus, start: int, limit: int) -> int:
    """Return the number of tokens from `start` to the last word that begins in (start, limit], or to `limit` if none does.

    `limit` must lie inside the document.
    """
    _, words = corpus.slice(start, limit + 1)
    word_starts = np.flatnonzero(words[1:])
    return int(word_starts[-1]) + 1 if len(word_starts) else limit - start
