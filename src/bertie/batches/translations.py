"""The layout of texts and their translations, for translation language modeling (Lample & Conneau 2019, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie import seeding
from bertie.batches.spans import WINDOW, last_word_start
from bertie.contracts import Sequence
from bertie.errors import UserError, require_range
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import special_tokens


@dataclass(frozen=True)
class Translations:
    """A text and its translation, [CLS] A [SEP] B [SEP], or a single text, [CLS] A [SEP] (XLM: Lample & Conneau 2019).

    1. With probability `translation_prob`, the texts of a document are put into random order and joined by twos. Otherwise,
       each text is a sequence of its own. A text without a partner is a sequence of its own, too.
    2. A sequence that is too long is split into several. Each has about the same fraction of both texts and ends at a
       sentence, or at a word if the sentence is too long. So a sequence with a translation never loses one side.

    An epoch reads every token once, in shuffled order. The positions restart at the second text, so that words at the same
    place of both texts have the same position: the first word of a text has position 1, after [CLS] at position 0.
    """

    kind: Literal["translations"] = "translations"
    max_length: int = 128
    """Maximum sequence length in tokens, including [CLS] and every [SEP]."""
    translation_prob: float = 0.5
    """Probability that the texts of a document are read together with their translations. Otherwise, and if a document has
    a single text, each text is read alone. 0: masked LM on texts of several languages. 1: every translation is used."""

    def __post_init__(self) -> None:
        require_range("layout", self, "max_length", low=6)  # up to four special tokens, one token of each text
        require_range("layout", self, "translation_prob", low=0, high=1)

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> TranslationsEpoch:
        """Join the texts of every document, split what is too long, and shuffle the sequences, for one epoch.

        Raises:
            UserError: The corpus has no languages.
        """
        if corpus.languages is None:
            raise UserError(
                'layout.kind is "translations", and the shards have no languages: prepare the text with --languages, or '
                'set layout.kind to "doc_sentences"'
            )
        rng = seeding.generator(seed, seeding.LAYOUT, epoch)
        room = [self.max_length - special_tokens(tokenizer, texts) for texts in (1, 2)]
        spans = _split(corpus, _join(corpus, self.translation_prob, rng), *room)
        return TranslationsEpoch(corpus, tokenizer, spans[rng.permutation(len(spans))])


@dataclass(frozen=True)
class TranslationSpan:
    """The token positions (start, stop) of one text in the corpus, or of a text and its translation."""

    texts: tuple[tuple[int, int], ...]
    length: int
    """Length of the sequence, special tokens included."""

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, eq=False)
class TranslationsEpoch:
    """The sequences of one epoch in shuffled order.

    spans: int64 [n, 2, 2], start and stop of both texts of each sequence in the corpus. A second text of (0, 0) is missing.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    spans: np.ndarray

    @property
    def windows(self) -> int:
        """Number of windows. A window is a group of sequences that are packed together."""
        return -(-len(self.spans) // WINDOW)

    def lengths(self, window: int) -> np.ndarray:
        """Return int64 [n]: the length in tokens of each sequence of a window."""
        sizes = np.diff(self.spans[window * WINDOW : (window + 1) * WINDOW])[..., 0]
        single, pair = (special_tokens(self.tokenizer, texts) for texts in (1, 2))
        return sizes.sum(1) + np.where(sizes[:, 1] > 0, pair, single)

    def window(self, window: int) -> list[TranslationSpan]:
        """Return the spans of a window."""
        spans = self.spans[window * WINDOW : (window + 1) * WINDOW].tolist()
        return [
            TranslationSpan(tuple((start, stop) for start, stop in texts if stop), length)
            for texts, length in zip(spans, self.lengths(window).tolist(), strict=True)
        ]

    def sequence(self, span: TranslationSpan) -> Sequence:
        """Read the texts of a span from the corpus and build their sequence, with the special tokens of the tokenizer.

        The token types are those of a pair in fine-tuning.
        """
        tokenizer, parts = self.tokenizer, []
        for number, (start, stop) in enumerate(span.texts):
            ids, words = self.corpus.slice(start, stop)
            # RoBERTa's second text begins with a </s>.
            first = [tokenizer.sep_id if number else tokenizer.cls_id] * (number == 0 or tokenizer.separators == 2)
            size = len(first) + len(ids) + 1
            parts.append(
                (
                    np.concatenate([first, ids, [tokenizer.sep_id]]),
                    np.full(size, number if tokenizer.separators == 1 else 0),
                    np.concatenate([np.ones(len(first), bool), words, [True]]),
                    np.arange(size) + 1 - len(first),
                    np.full(size, self.corpus.language(start)),
                )
            )
        ids, segments, words, positions, languages = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Sequence(
            input_ids=ids.astype(np.int32),
            token_type_ids=segments.astype(np.int32),
            word_starts=words,
            position_ids=positions.astype(np.int32),
            language_ids=languages.astype(np.int32),
        )


def _join(corpus: Corpus, translation_prob: float, rng: np.random.Generator) -> np.ndarray:
    """Return the texts of every sequence before it is split, int64 [n, 2, 2] as in `TranslationsEpoch`."""
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
        spans: int64 [n, 2, 2], as in `TranslationsEpoch`.
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
