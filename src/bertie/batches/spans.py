"""What the layouts share: the size of a window, and the place where a sentence that is too long is split."""

from __future__ import annotations

import numpy as np

from bertie.text.shards import Corpus

WINDOW = 8192  # sequences that are paired and packed together; resuming rebuilds one window


def last_word_start(corpus: Corpus, start: int, limit: int) -> int:
    """Return the number of tokens from `start` to the last word that begins in (start, limit], or to `limit` if none does.

    `limit` must lie inside the document.
    """
    _, words = corpus.slice(start, limit + 1)
    word_starts = np.flatnonzero(words[1:])
    return int(word_starts[-1]) + 1 if len(word_starts) else limit - start
