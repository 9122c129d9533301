"""The layouts of contiguous sentences, without pairs and labels (Liu et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from bertie import seeding
from bertie.batches.spans import WINDOW, last_word_start
from bertie.contracts import Sequence
from bertie.errors import require_range
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer

BLOCK = 1 << 20  # sentences that are grouped into sequences at once, to limit memory


@dataclass(frozen=True)
class FullSentences:
    """Contiguous whole sentences up to the maximum length, across documents (FULL-SENTENCES of RoBERTa: Liu et al. 2019,
    section 4.2).

    A sequence is [CLS] … [SEP]. Where it goes on in the next document, another [SEP] separates the documents. Only a
    sentence that is longer than a sequence is split, at a word. An epoch reads every token once, in shuffled order.
    """

    kind: Literal["full_sentences"] = "full_sentences"
    max_length: int = 128
    """Maximum sequence length in tokens, including [CLS] and every [SEP]."""
    short_seq_prob: float = 0.0
    """Probability that a sequence ends at a random shorter length, after at least one sentence. 0: the sequences are the
    same in every epoch, in another order."""

    def __post_init__(self) -> None:
        require_range("layout", self, "max_length", low=3)
        require_range("layout", self, "short_seq_prob", low=0, high=1)

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> ContiguousEpoch:
        """Group the sentences of the corpus into sequences and shuffle them, for one epoch."""
        return _epoch(self, corpus, tokenizer, seed, epoch)


@dataclass(frozen=True)
class DocSentences:
    """Contiguous whole sentences of one document, up to the maximum length (DOC-SENTENCES of RoBERTa: Liu et al. 2019,
    section 4.2).

    A sequence is [CLS] … [SEP]. It ends at the end of its document. Only a sentence that is longer than a sequence is
    split, at a word. An epoch reads every token once, in shuffled order.
    """

    kind: Literal["doc_sentences"] = "doc_sentences"
    max_length: int = 128
    """Maximum sequence length in tokens, including [CLS] and [SEP]."""
    short_seq_prob: float = 0.0
    """Probability that a sequence ends at a random shorter length, after at least one sentence. 0: the sequences are the
    same in every epoch, in another order."""

    def __post_init__(self) -> None:
        require_range("layout", self, "max_length", low=3)
        require_range("layout", self, "short_seq_prob", low=0, high=1)

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> ContiguousEpoch:
        """Group the sentences of every document into sequences and shuffle them, for one epoch."""
        return _epoch(self, corpus, tokenizer, seed, epoch)


@dataclass(frozen=True)
class ContiguousSpan:
    """The token positions (start, stop) of a sequence in the corpus, one pair for each document."""

    parts: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return 1 + sum(stop - start + 1 for start, stop in self.parts)


@dataclass(frozen=True, eq=False)
class ContiguousEpoch:
    """The sequences of one epoch in shuffled order. Sequence i has the tokens starts[i] to stops[i] of the corpus."""

    corpus: Corpus
    tokenizer: Tokenizer
    starts: np.ndarray
    stops: np.ndarray

    @property
    def windows(self) -> int:
        """Number of windows. A window is a group of sequences that are packed together."""
        return -(-len(self.starts) // WINDOW)

    def lengths(self, window: int) -> np.ndarray:
        """Return int64 [n]: the length in tokens of each sequence of a window."""
        first, last = self._documents(window)
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        return self.stops[part] - self.starts[part] + last - first + 2  # [CLS], and a [SEP] for each document

    def window(self, window: int) -> list[ContiguousSpan]:
        """Return the spans of a window."""
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        spans = []
        for start, stop, first, last in zip(self.starts[part], self.stops[part], *self._documents(window), strict=True):
            edges = [int(start), *self.corpus.document_starts[first + 1 : last + 1].tolist(), int(stop)]
            spans.append(ContiguousSpan(tuple(pairwise(edges))))
        return spans

    def sequence(self, span: ContiguousSpan) -> Sequence:
        """Read a span from the corpus and build its sequence. All tokens have segment 0."""
        ids, words = [np.array([self.tokenizer.cls_id])], [np.array([True])]
        for start, stop in span.parts:
            part_ids, part_words = self.corpus.slice(start, stop)
            ids += [part_ids, np.array([self.tokenizer.sep_id])]
            words += [part_words, np.array([True])]
        return Sequence(
            input_ids=np.concatenate(ids).astype(np.int32),
            token_type_ids=np.zeros(len(span), np.int32),
            word_starts=np.concatenate(words),
        )

    def _documents(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Return int64 [n] twice: the numbers of the first and of the last document of each sequence of a window."""
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        return _document(self.corpus, self.starts[part]), _document(self.corpus, self.stops[part] - 1)


def _epoch(
    layout: FullSentences | DocSentences, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int
) -> ContiguousEpoch:
    rng = seeding.generator(seed, seeding.LAYOUT, epoch)
    edges = np.concatenate([*_edges(layout, corpus, rng), corpus.sentence_starts[-1:]])
    order = rng.permutation(len(edges) - 1)
    return ContiguousEpoch(corpus, tokenizer, edges[:-1][order], edges[1:][order])


def _edges(layout: FullSentences | DocSentences, corpus: Corpus, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield the first token of every sequence, in the order of the corpus, as int64 arrays.

    For a block of sentences at once, find the sentence that begins the next sequence if a sequence begins at this one.
    Then follow these links. A sequence has fewer sentences than tokens, so the links of a block end less than
    `max_length` sentences after it.
    """
    starts = _split_long_sentences(corpus, layout.max_length - 2)
    first = 0
    while first < len(starts) - 1:
        near = starts[first : first + BLOCK + layout.max_length]
        begin = near[:BLOCK] if len(near) > BLOCK else near[:-1]
        short = rng.random(len(begin)) < layout.short_seq_prob
        limit = np.where(short, rng.integers(3, layout.max_length + 1, len(begin)), layout.max_length)
        document = _document(corpus, near)
        at_document = corpus.document_starts[document] == near
        # A [SEP] after each document before a sentence gives its position. A sequence that ends there has, besides [CLS],
        # the tokens up to this position; in mid-document, one [SEP] more.
        position = near + document
        link = np.searchsorted(position + ~at_document, position[: len(begin)] + limit - 1, side="right") - 1
        link = np.maximum(link, np.arange(1, len(begin) + 1))
        if isinstance(layout, DocSentences):
            link = np.minimum(link, np.searchsorted(near, corpus.document_starts[document[: len(begin)] + 1]))
        links, chain, at = link.tolist(), [], 0
        while at < len(links):
            chain.append(at)
            at = links[at]
        yield near[chain]
        first += at


def _split_long_sentences(corpus: Corpus, most: int) -> np.ndarray:
    """Return `corpus.sentence_starts`, and positions that split sentences of more than `most` tokens at words."""
    added = []
    for sentence in np.flatnonzero(np.diff(corpus.sentence_starts) > most):
        start, stop = corpus.sentence_starts[sentence : sentence + 2].tolist()
        while stop - start > most:
            start += last_word_start(corpus, start, start + most)
            added.append(start)
    return (
        np.sort(np.concatenate([corpus.sentence_starts, np.array(added, np.int64)]))
        if added
        else corpus.sentence_starts
    )


def _document(corpus: Corpus, tokens: np.ndarray) -> np.ndarray:
    """Return int64 [n]: the number of the document of each token. For the end of the corpus: the number of documents."""
    return np.searchsorted(corpus.document_starts, tokens, side="right") - 1
