"""The layout of texts and their translations, for translation language modeling (Lample & Conneau 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Literal

import numpy as np

from bertie.base import seeding
from bertie.base.config import Fraction, Range, ranges
from bertie.base.contracts import Sequence
from bertie.base.errors import UserError
from bertie.batches.spans import LayoutEpoch, as_texts, last_word_start
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.tokenizers.truncation import special_tokens


@dataclass(frozen=True)
class Translations:
    """A text and its translation, [CLS] A [SEP] B [SEP], or a single text, [CLS] A [SEP] (XLM: Lample & Conneau 2019).

    1. With probability `translation_prob`, the texts of a document are put into random order and joined in pairs.
       Otherwise, each text is a sequence of its own. A text without a partner is a sequence of its own, too.
    2. A sequence that is too long is split into several. Each has about the same fraction of both texts and ends at a
       sentence, or at a word if the sentence is too long. So a sequence with a translation never loses one side.

    An epoch reads every token once, in shuffled order. The positions restart at the second text, so that words at the same
    place of both texts have the same position: the first word of a text has position 1, after [CLS] at position 0.
    """

    kind: Literal["translations"] = "translations"
    max_length: Annotated[int, Range(6)] = 128  # up to four special tokens, one token of each text
    """Maximum sequence length in tokens, including [CLS] and every [SEP]."""
    translation_prob: Fraction = 0.5
    """Probability that the texts of a document are read together with their translations. Otherwise, and if a document has
    a single text, each text is read alone. 0: masked LM on texts of several languages. 1: every translation is used."""

    __post_init__ = ranges("layout")

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> LayoutEpoch:
        """Join the texts of every document, split what is too long, and shuffle the sequences, for one epoch.

        Raises:
            UserError: The corpus has no languages.
        """
        if corpus.languages is None:
            raise UserError('layout.kind "translations" needs shards with languages: prepare the text with --languages')
        rng = seeding.generator(seed, seeding.LAYOUT, epoch)
        single, pair = (special_tokens(tokenizer, texts) for texts in (1, 2))
        joined = _join(corpus, self.translation_prob, rng)
        spans = _split(corpus, joined, self.max_length - single, self.max_length - pair)
        spans = spans[rng.permutation(len(spans))]
        sizes = np.diff(spans)[..., 0]
        lengths = sizes.sum(1) + np.where(sizes[:, 1] > 0, pair, single)

        def window(_: int, part: slice) -> list[tuple[tuple[int, int], ...]]:
            return [tuple((start, stop) for start, stop in texts if stop) for texts in spans[part].tolist()]

        return LayoutEpoch(lengths, window, partial(_sequence, corpus, tokenizer))


def _sequence(corpus: Corpus, tokenizer: Tokenizer, texts: tuple[tuple[int, int], ...]) -> Sequence:
    """Read a text, or a text and its translation, and build their sequence."""
    sequence, places = as_texts(corpus, tokenizer, texts)
    begin, size = 0, len(sequence)
    positions, languages = np.zeros(size, np.int32), np.zeros(size, np.int32)
    for place, (start, _) in zip(places, texts, strict=True):
        # Special tokens before the text have lower positions: [CLS], and the second </s> between RoBERTa's texts.
        positions[begin:] = np.maximum(np.arange(begin, size) - place.start + places[0].start, 0)
        languages[begin:] = corpus.language(start)
        begin = place.stop + min(tokenizer.templates.separators, 1)
    return replace(sequence, position_ids=positions, language_ids=languages)


def _join(corpus: Corpus, translation_prob: float, rng: np.random.Generator) -> np.ndarray:
    """Return the texts of every sequence before it is split.

    Returns:
        int64 [n, 2, 2], start and stop of both texts of each sequence in the corpus. A second text of (0, 0) is missing.
    """
    document, texts = _texts(corpus)
    shuffled = np.lexsort((rng.random(len(texts)), document))
    texts = texts[shuffled]  # the documents remain in order
    together = (rng.random(len(corpus.document_starts) - 1) < translation_prob)[document]
    place = np.arange(len(texts)) - np.searchsorted(document, document)  # in the document
    has_next = np.append(document[1:] == document[:-1], False)
    first = np.flatnonzero(~together | (place % 2 == 0))
    spans = np.zeros((len(first), 2, 2), np.int64)
    spans[:, 0] = texts[first]
    paired = (together & has_next)[first]
    spans[paired, 1] = texts[first[paired] + 1]
    return spans


def _texts(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Find the texts of the documents: runs of sentences in the same language.

    Returns:
        int64 [texts]: the document of each text, ascending. int64 [texts, 2]: its start and stop in tokens.
    """
    assert corpus.languages is not None
    changes = np.append(True, corpus.languages[1:] != corpus.languages[:-1])
    changes[np.searchsorted(corpus.sentence_starts, corpus.document_starts[:-1])] = True
    edges = np.append(corpus.sentence_starts[:-1][changes], corpus.sentence_starts[-1])
    document = np.searchsorted(corpus.document_starts, edges[:-1], side="right") - 1
    return document, np.stack([edges[:-1], edges[1:]], 1)


def _split(corpus: Corpus, spans: np.ndarray, single: int, pair: int) -> np.ndarray:
    """Split sequences that are too long.

    Each pass of the loop takes one sequence from every span that is not finished.

    Args:
        corpus: The corpus.
        spans: int64 [n, 2, 2], as `_join` returns them.
        single: Most tokens of a text that is alone.
        pair: Most tokens of two texts together.
    """
    pieces = []
    while len(spans):
        starts, stops = spans[..., 0], spans[..., 1]
        sizes = stops - starts
        total, most = sizes.sum(1), np.where(sizes[:, 1] > 0, pair, single)
        share = np.maximum(sizes * np.minimum(most, total)[:, None] // total[:, None], sizes > 0)
        ends = _last_breaks(corpus, starts, starts + share, stops)
        pieces.append(np.stack([starts, ends], -1))
        rest = np.stack([ends, stops], -1)[(ends < stops).any(1)]
        first_ended = rest[:, 0, 0] == rest[:, 0, 1]
        rest[first_ended, 0] = rest[first_ended, 1]
        rest[first_ended | (rest[:, 1, 0] == rest[:, 1, 1]), 1] = 0
        spans = rest
    return np.concatenate(pieces)


def _last_breaks(corpus: Corpus, starts: np.ndarray, limits: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Return the last beginning of a sentence in (start, limit], or of a word if there is none, or else the limit.

    The end of the text, where the limit is the stop, remains as it is. All arrays have the same shape.
    """
    sentences = corpus.sentence_starts[np.searchsorted(corpus.sentence_starts, limits, side="right") - 1]
    ends = np.where((limits < stops) & (sentences > starts), sentences, limits)
    for i in zip(*np.nonzero((limits < stops) & (sentences <= starts)), strict=True):
        ends[i] = starts[i] + last_word_start(corpus, int(starts[i]), int(limits[i]))
    return ends
