"""The layout of sentences with their neighbors, for skip-thoughts (Kiros et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from bertie.base import seeding
from bertie.base.config import Range, ranges
from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.spans import LayoutEpoch, between_marks, last_word_start
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer

SPECIAL = 2  # [CLS] and [SEP] of each sentence


@dataclass(frozen=True)
class Sentences:
    """Runs of sentences of one document, each with its own special tokens: `[CLS] first [SEP] [CLS] second [SEP] …`

    A run has two sentences or more, as many as fit. The next run begins with the last sentence of this one, so an epoch has every
    two neighbors in one run exactly once. A sentence that takes more than half of the maximum length ends at the last word that
    fits; the rest is not read. Documents of a single sentence have no neighbors and are left out.
    """

    kind: Literal["sentences"] = "sentences"
    max_length: Annotated[int, Range(6)] = 128  # two sentences of one token
    """Maximum length in tokens of a run, including all [CLS] and [SEP]. A sentence has at most half of it."""

    __post_init__ = ranges("layout")

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> LayoutEpoch:
        """Divide the documents into runs and shuffle them, for one epoch.

        Raises:
            UserError: No document has two sentences.
        """
        most = self.max_length // 2 - SPECIAL
        ends = np.append(0, np.cumsum(np.minimum(np.diff(corpus.sentence_starts), most) + SPECIAL))
        edges = np.searchsorted(corpus.sentence_starts, corpus.document_starts)
        first, stop = _runs(edges, ends, self.max_length)
        if not len(first):
            raise UserError(
                'layout.kind "sentences" needs documents of several sentences, in training and held-out text: prepare other '
                "text, with a larger --eval-share, or set another layout.kind"
            )
        order = seeding.generator(seed, seeding.LAYOUT, epoch).permutation(len(first))
        spans = np.stack([first, stop], 1)[order]
        lengths = (ends[stop] - ends[first])[order]
        return LayoutEpoch(lengths, lambda _, part: spans[part].tolist(), partial(_sequence, corpus, tokenizer, most))


def _runs(edges: np.ndarray, ends: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first sentence of each run, and the one after its last.

    Each pass of the loop takes one run from every document that is not finished.

    Args:
        edges: int64 [documents + 1], the first sentence of each document, and the number of sentences.
        ends: int64 [sentences + 1], the length in tokens of all sentences before each one, with special tokens.
        max_length: Most tokens of a run, enough for any two sentences.
    """
    firsts, stops = [], []
    first, last = edges[:-1], edges[1:]
    unfinished = last - first >= 2
    while unfinished.any():
        first, last = first[unfinished], last[unfinished]
        stop = np.minimum(np.searchsorted(ends, ends[first] + max_length, side="right") - 1, last)
        firsts.append(first)
        stops.append(stop)
        unfinished, first = stop < last, stop - 1
    return (np.concatenate(firsts), np.concatenate(stops)) if firsts else (edges[:0], edges[:0])


def _sequence(corpus: Corpus, tokenizer: Tokenizer, most: int, span: tuple[int, int]) -> Sequence:
    """Read the sentences of a run, each with at most so many tokens, and build their sequence."""
    first, after = span
    parts = []
    for start, stop in pairwise(corpus.sentence_starts[first : after + 1].tolist()):
        fitting = start + last_word_start(corpus, start, start + most) if stop - start > most else stop
        parts.append((start, fitting))
    return between_marks(corpus, tokenizer, parts, alone=True)
