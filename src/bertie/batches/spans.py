"""Shared by the layouts: the sequences of an epoch, and the place where a sentence that is too long is split."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertie.base.contracts import Sequence
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import TokenizedText, add_special_tokens, text_slices

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


def between_marks(corpus: Corpus, tokenizer: Tokenizer, parts: Iterable[tuple[int, int]], alone: bool) -> Sequence:
    """Read parts of the corpus, each from start to stop, and put a [SEP] after each. All tokens have segment 0.

    alone: Whether each part also begins with [CLS]; otherwise, the first one does.
    """
    ids, words, mark = [], [], np.array([True])
    for start, stop in parts:
        part_ids, part_words = corpus.slice(start, stop)
        if alone or not ids:
            ids, words = [*ids, np.array([tokenizer.cls_id])], [*words, mark]
        ids += [part_ids, np.array([tokenizer.sep_id])]
        words += [part_words, mark]
    input_ids = np.concatenate(ids).astype(np.int32)
    return Sequence(input_ids, np.zeros_like(input_ids), np.concatenate(words))


def as_texts(corpus: Corpus, tokenizer: Tokenizer, spans: Iterable[tuple[int, int]]) -> tuple[Sequence, list[slice]]:
    """Read one text or two, and build their sequence with the special tokens and token types of the tokenizer.

    Returns:
        The sequence, and where the texts stand in it.
    """
    read = [corpus.slice(start, stop) for start, stop in spans]
    sequence = add_special_tokens(tokenizer, [TokenizedText(ids, None) for ids, _ in read])
    places = text_slices(tokenizer, [len(ids) for ids, _ in read])
    word_starts = np.ones(len(sequence), bool)
    for place, (_, words) in zip(places, read, strict=True):
        word_starts[place] = words
    return replace(sequence, word_starts=word_starts), places


def last_word_start(corpus: Corpus, start: int, limit: int) -> int:
    """Return the number of tokens from `start` to the last word that begins in (start, limit], or to `limit` if none does.

    `limit` must lie inside the document.
    """
    _, words = corpus.slice(start, limit + 1)
    word_starts = np.flatnonzero(words[1:])
    return int(word_starts[-1]) + 1 if len(word_starts) else limit - start
