"""How documents become sequences. One dataclass a layout; the union at the end is all there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie import seeding
from bertie.contracts import Sequence
from bertie.errors import UserError, require_range
from bertie.text.shards import Corpus
from bertie.text.tokenizer import Tokenizer

IS_NEXT, IS_RANDOM, UNLABELLED = 0, 1, -1
WINDOW = 8192  # sequences that are paired and packed together; what resuming has to build again


@dataclass(frozen=True)
class SentencePairs:
    """[CLS] A [SEP] B [SEP] for next sentence prediction (Devlin et al. 2018, section 3.1 and appendix A.2).

    Each document is cut into chunks of whole sentences, each chunk at a sentence into A and B. Chunks of different
    documents whose B are about equally long make a couple (B's are trimmed to the shorter: under a token, on average),
    and a fair coin decides whether the two exchange their B. So labels are balanced, B is never from A's own document
    when the label says "random", every token is read once an epoch, and given the lengths the label is a coin flip: no
    model can guess it without reading. (The original fills random B's from elsewhere up to the limit, which makes
    them longer, and labels 55 % of pairs random.)
    """

    kind: Literal["pairs"] = "pairs"
    max_length: int = 128
    """Tokens in the longest sequence, with [CLS] and both [SEP]."""
    short_seq_prob: float = 0.1
    """Share of chunks that stop at a random shorter length, so that the model sees short inputs too."""

    def __post_init__(self) -> None:
        require_range("layout", self, "max_length", low=5)  # three special tokens, and one each of A and B
        require_range("layout", self, "short_seq_prob", low=0, high=1)

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> SentencePairsEpoch:
        """The order of one pass over the corpus. Errors: UserError where pairs cannot be made."""
        if len(corpus.document_starts) < 3:
            raise UserError("next sentence prediction needs at least two documents: B is taken from another one")
        rng = seeding.generator(seed, seeding.LAYOUT, epoch)
        starts, stops = _chunks(corpus, self.max_length - 3, self.short_seq_prob, rng)
        order = rng.permutation(len(starts))
        return SentencePairsEpoch(corpus, tokenizer, seed, epoch, starts[order], stops[order])


@dataclass(frozen=True, eq=False)
class SentencePairsEpoch:
    """Chunk i is tokens starts[i] : stops[i] of the corpus, in the shuffled order of this epoch."""

    corpus: Corpus
    tokenizer: Tokenizer
    seed: int
    epoch: int
    starts: np.ndarray
    stops: np.ndarray

    @property
    def windows(self) -> int:
        return -(-len(self.starts) // WINDOW)

    def lengths(self, window: int) -> np.ndarray:
        """int64 [n]: tokens of each sequence of a window, before any trimming."""
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        return self.stops[part] - self.starts[part] + 3

    def window(self, window: int) -> list[PairSpan]:
        """The pairs of a window. A pure function of (seed, epoch, window)."""
        part = slice(window * WINDOW, (window + 1) * WINDOW)
        rng = seeding.generator(self.seed, seeding.PAIRS, self.epoch, window)
        return _pair(self.corpus, self.starts[part], self.stops[part], rng)

    def sequence(self, span: PairSpan) -> Sequence:
        (a_ids, a_words), (b_ids, b_words) = self.corpus.slice(*span.a), self.corpus.slice(*span.b)
        cls, sep = [self.tokenizer.cls_id], [self.tokenizer.sep_id]
        token_type_ids = np.zeros(len(a_ids) + len(b_ids) + 3, np.int32)
        token_type_ids[len(a_ids) + 2 :] = 1
        return Sequence(
            input_ids=np.concatenate([cls, a_ids, sep, b_ids, sep]).astype(np.int32),
            token_type_ids=token_type_ids,
            word_starts=np.concatenate([[True], a_words, [True], b_words, [True]]),
            kind=span.kind,
        )


@dataclass(frozen=True)
class PairSpan:
    """Where A and B lie in the corpus (start, stop), and the label."""

    a: tuple[int, int]
    b: tuple[int, int]
    kind: int

    def __len__(self) -> int:
        return self.a[1] - self.a[0] + self.b[1] - self.b[0] + 3


Layout = SentencePairs  # | FullSentences | …: a new layout is one dataclass and one name here


def _chunks(
    corpus: Corpus, budget: int, short_seq_prob: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut every document into runs of whole sentences of at most `budget` tokens; all documents advance together."""
    at, ends = corpus.document_starts[:-1], corpus.document_starts[1:]
    starts, stops = [], []
    while len(at):
        short = rng.integers(2, budget + 1, len(at))
        size = np.where(rng.random(len(at)) < short_seq_prob, short, budget)
        limit = np.minimum(at + size, ends)
        stop = corpus.sentence_starts[np.searchsorted(corpus.sentence_starts, limit, side="right") - 1]
        too_long = np.flatnonzero(stop <= at)
        for i in too_long:  # one sentence fills the whole chunk: cut it where a word begins
            stop[i] = at[i] + _last_word_start(corpus, int(at[i]), int(limit[i]))
        starts.append(at)
        stops.append(stop)
        going = stop < ends
        at, ends = stop[going], ends[going]
    start, stop = np.concatenate(starts), np.concatenate(stops)
    usable = stop - start >= 2  # a chunk of one token has no A and B
    return start[usable], stop[usable]


def _last_word_start(corpus: Corpus, start: int, limit: int) -> int:
    """Tokens up to the last word that begins in (start, limit]; all of them where none does. limit is inside the document."""
    _, words = corpus.slice(start, limit + 1)
    found = np.flatnonzero(words[1:])
    return int(found[-1]) + 1 if len(found) else limit - start


def _pair(corpus: Corpus, starts: np.ndarray, stops: np.ndarray, rng: np.random.Generator) -> list[PairSpan]:
    cuts, at_sentence = _cut(corpus, starts, stops, rng)
    documents = np.searchsorted(corpus.document_starts, starts, side="right")
    lengths = stops - cuts
    spans = [
        PairSpan((int(start), int(cut)), (int(cut), int(stop)), UNLABELLED)
        for start, cut, stop in zip(starts, cuts, stops, strict=True)
    ]
    by_length = np.lexsort((rng.random(len(starts)), lengths))
    for group in (at_sentence, ~at_sentence):  # a B that begins in mid-sentence is exchanged for another such B
        for i, j in _couples(by_length[group[by_length]], documents):
            trimmed = int(min(lengths[i], lengths[j]))
            swap = rng.random() < 0.5
            for own, other in ((i, j), (j, i)):
                b = int(cuts[other if swap else own])
                spans[own] = PairSpan(spans[own].a, (b, b + trimmed), IS_RANDOM if swap else IS_NEXT)
    return spans


def _couples(order: np.ndarray, documents: np.ndarray) -> Iterator[tuple[int, int]]:
    """Neighbours of different documents. What one document has in excess stays single (and so unlabelled)."""
    waiting: list[int] = []  # all of one document
    for i in order:
        if waiting and documents[waiting[-1]] != documents[i]:
            yield int(i), waiting.pop()
        else:
            waiting.append(int(i))


def _cut(
    corpus: Corpus, starts: np.ndarray, stops: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Where B begins: at a random sentence inside the chunk, else at a random word; and whether it was a sentence."""
    first = np.searchsorted(corpus.sentence_starts, starts, side="right")
    last = np.searchsorted(corpus.sentence_starts, stops, side="left")
    draws = rng.random(len(starts))
    inside = last > first
    cuts = corpus.sentence_starts[np.where(inside, first + (draws * (last - first)).astype(np.int64), 0)]
    for i in np.flatnonzero(~inside):
        _, words = corpus.slice(int(starts[i]), int(stops[i]))
        places = np.flatnonzero(words[1:]) + 1
        places = places if len(places) else np.arange(1, len(words))
        cuts[i] = starts[i] + places[int(draws[i] * len(places))]
    return cuts, inside
