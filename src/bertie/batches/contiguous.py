"""The layouts of contiguous sentences, without pairs and labels (Liu et al. 2019, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np

from bertie.base import seeding
from bertie.base.config import Fraction, Range, ranges
from bertie.base.contracts import Sequence
from bertie.batches.spans import LayoutEpoch, between_marks, last_word_start
from bertie.corpus.token_corpus import Corpus
from bertie.tokenizers.tokenizer import Tokenizer

BLOCK = 1 << 20  # sentences that are grouped into sequences at once, to limit memory


def _epoch(
    layout: FullSentences | DocSentences, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int
) -> LayoutEpoch:
    """Group the sentences of the corpus, or of every document, into sequences and shuffle them, for one epoch."""
    rng = seeding.generator(seed, seeding.LAYOUT, epoch)
    edges = np.concatenate([*_edges(layout, corpus, rng), corpus.sentence_starts[-1:]])
    spans = np.stack([edges[:-1], edges[1:]], 1)[rng.permutation(len(edges) - 1)]
    documents = _document(corpus, spans[:, 1] - 1) - _document(corpus, spans[:, 0])
    lengths = spans[:, 1] - spans[:, 0] + documents + 2  # [CLS], and a [SEP] for each document
    return LayoutEpoch(lengths, lambda _, part: spans[part].tolist(), partial(_sequence, corpus, tokenizer))


@dataclass(frozen=True)
class FullSentences:
    """Contiguous whole sentences up to the maximum length, across documents (FULL-SENTENCES of RoBERTa: Liu et al. 2019,
    section 4.2).

    A sequence is [CLS] … [SEP]. Where it goes on in the next document, another [SEP] separates the documents. Only a
    sentence that is longer than a sequence is split, at a word. An epoch reads every token once, in shuffled order.
    """

    kind: Literal["full_sentences"] = "full_sentences"
    max_length: Annotated[int, Range(3)] = 128
    """Maximum sequence length in tokens, including [CLS] and every [SEP]."""
    short_seq_prob: Fraction = 0.0
    """Probability that a sequence ends at a random shorter length, after at least one sentence. 0: the sequences are the
    same in every epoch, in another order."""
    __post_init__ = ranges("layout")
    epoch = _epoch


@dataclass(frozen=True)
class DocSentences:
    """Contiguous whole sentences of one document, up to the maximum length (DOC-SENTENCES of RoBERTa: Liu et al. 2019,
    section 4.2).

    A sequence is [CLS] … [SEP]. It ends at the end of its document. Only a sentence that is longer than a sequence is
    split, at a word. An epoch reads every token once, in shuffled order.
    """

    kind: Literal["doc_sentences"] = "doc_sentences"
    max_length: Annotated[int, Range(3)] = 128
    """Maximum sequence length in tokens, including [CLS] and [SEP]."""
    short_seq_prob: Fraction = 0.0
    """Probability that a sequence ends at a random shorter length, after at least one sentence. 0: the sequences are the
    same in every epoch, in another order."""
    __post_init__ = ranges("layout")
    epoch = _epoch


def _sequence(corpus: Corpus, tokenizer: Tokenizer, span: tuple[int, int]) -> Sequence:
    """Read the tokens from `start` to `stop` and build their sequence."""
    start, stop = span
    first, last = np.searchsorted(corpus.document_starts, (start, stop - 1), side="right")
    edges = [start, *corpus.document_starts[first:last].tolist(), stop]
    return between_marks(corpus, tokenizer, pairwise(edges), alone=False)


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
    starts = corpus.sentence_starts
    return np.sort(np.concatenate([starts, np.array(added)])) if added else starts


def _document(corpus: Corpus, tokens: np.ndarray) -> np.ndarray:
    """Return int64 [n]: the number of the document of each token. For the end of the corpus: the number of documents."""
    return np.searchsorted(corpus.document_starts, tokens, side="right") - 1
