"""The layout of sentence pairs, for next sentence prediction and sentence order prediction."""

from __future__ import annotations

from collections.abc import Iterator
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

IS_NEXT, IS_RANDOM, UNLABELED = 0, 1, -1
IS_SWAPPED = IS_RANDOM


@dataclass(frozen=True)
class SentencePairs:
    """Sentence pairs, [CLS] A [SEP] B [SEP], for next sentence prediction (Devlin et al. 2018, section 3.1 and appendix A.2).

    The tokenizer determines special tokens and token types, as in fine-tuning.

    1. Each document is split into chunks of whole sentences, and each chunk into A and B at a random sentence.
    2. Two chunks of different documents whose Bs have about the same length form a couple. The longer B is trimmed to the
       length of the shorter one, by less than a token on average.
    3. With probability 0.5, the two chunks of a couple exchange their Bs. The label of both pairs is then "random",
       otherwise "next".

    So the labels are balanced, a random B never comes from A's own document, and an epoch reads every token once, except
    those that trimming removes. Given the lengths, the label is a coin flip, so a model cannot predict it without reading
    the text. (In the original BERT, a random B fills the sequence up to the limit, which makes it longer, and 55 % of the
    pairs are random.)

    With `negatives = "swapped"`, for sentence order prediction (Lan et al. 2019, section 3.1), step 2 does not exist. In
    step 3, A and B of a chunk change places with probability 0.5, and the label is then "swapped". The lengths are then a
    weak hint: a chunk often begins with a long sentence, which did not fit into the one before. From the lengths alone, 53 %
    of the labels can be guessed with 128 tokens, 56 % with 64 (Simple English Wikipedia).
    """

    kind: Literal["pairs"] = "pairs"
    max_length: Annotated[int, Range(5)] = 128  # three special tokens, one token of A and one of B
    """Maximum sequence length in tokens, including special tokens."""
    short_seq_prob: Fraction = 0.1
    """Probability that a chunk ends at a random shorter length, so that the model also sees short inputs."""
    negatives: Literal["random", "swapped"] = "random"
    """Pairs of label 1. random: B comes from another document, as in BERT. swapped: A follows B, as in ALBERT."""

    __post_init__ = ranges("layout")

    def epoch(self, corpus: Corpus, tokenizer: Tokenizer, seed: int, epoch: int) -> LayoutEpoch:
        """Split the corpus into chunks and shuffle them, for one epoch.

        Raises:
            UserError: The corpus has fewer than two documents, and a random B needs another one; or special tokens leave no
                place for texts.
        """
        if self.negatives == "random" and len(corpus.document_starts) < 3:
            raise UserError('layout.negatives "random" needs at least two documents: give more text')
        rng = seeding.generator(seed, seeding.LAYOUT, epoch)
        special = special_tokens(tokenizer, 2)
        if self.max_length < special + 2:
            raise UserError(f"layout.max_length {self.max_length} has no room for {special} special tokens: raise it")
        starts, stops = _chunks(corpus, self.max_length - special, self.short_seq_prob, rng)
        order = rng.permutation(len(starts))
        starts, stops = starts[order], stops[order]
        pair = _pair_swapped if self.negatives == "swapped" else _pair

        def spans(window: int, part: slice) -> list[PairSpan]:
            return pair(corpus, starts[part], stops[part], seeding.generator(seed, seeding.PAIRS, epoch, window))

        return LayoutEpoch(stops - starts + special, spans, partial(_sequence, corpus, tokenizer))


@dataclass(frozen=True)
class PairSpan:
    """A pair: the token positions (start, stop) of A and B in the corpus, and the label."""

    a: tuple[int, int]
    b: tuple[int, int]
    pair_label: int


def _sequence(corpus: Corpus, tokenizer: Tokenizer, span: PairSpan) -> Sequence:
    """Read a pair from the corpus and build its sequence."""
    sequence, _ = as_texts(corpus, tokenizer, (span.a, span.b))
    return replace(sequence, pair_label=span.pair_label)


def _chunks(
    corpus: Corpus, budget: int, short_seq_prob: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Split every document into chunks of whole sentences with at most `budget` tokens.

    Each pass of the loop takes one chunk from every document that is not finished.
    """
    start, ends = corpus.document_starts[:-1], corpus.document_starts[1:]
    starts, stops = [], []
    while len(start):
        short = rng.integers(2, budget + 1, len(start))
        size = np.where(rng.random(len(start)) < short_seq_prob, short, budget)
        limit = np.minimum(start + size, ends)
        stop = corpus.sentence_starts[np.searchsorted(corpus.sentence_starts, limit, side="right") - 1]
        too_long = np.flatnonzero(stop <= start)
        for i in too_long:  # the sentence is longer than the chunk: split it at a word
            stop[i] = start[i] + last_word_start(corpus, int(start[i]), int(limit[i]))
        starts.append(start)
        stops.append(stop)
        unfinished = stop < ends
        start, ends = stop[unfinished], ends[unfinished]
    start, stop = np.concatenate(starts), np.concatenate(stops)
    usable = stop - start >= 2  # a chunk of one token cannot be split into A and B
    return start[usable], stop[usable]


def _pair(corpus: Corpus, starts: np.ndarray, stops: np.ndarray, rng: np.random.Generator) -> list[PairSpan]:
    b_starts, at_sentence = _choose_b_starts(corpus, starts, stops, rng)
    documents = np.searchsorted(corpus.document_starts, starts, side="right")
    lengths = stops - b_starts
    edges = zip(starts.tolist(), b_starts.tolist(), stops.tolist(), strict=True)
    spans = [PairSpan((start, middle), (middle, stop), UNLABELED) for start, middle, stop in edges]
    by_length = np.lexsort((rng.random(len(starts)), lengths))
    for group in (at_sentence, ~at_sentence):  # exchange a B that begins in mid-sentence only for another such B
        for i, j in _couples(by_length[group[by_length]], documents):
            trimmed = int(min(lengths[i], lengths[j]))
            swap = rng.random() < 0.5
            for chunk, partner in ((i, j), (j, i)):
                b = int(b_starts[partner if swap else chunk])
                spans[chunk] = PairSpan(spans[chunk].a, (b, b + trimmed), IS_RANDOM if swap else IS_NEXT)
    return spans


def _pair_swapped(corpus: Corpus, starts: np.ndarray, stops: np.ndarray, rng: np.random.Generator) -> list[PairSpan]:
    b_starts, _ = _choose_b_starts(corpus, starts, stops, rng)
    spans = []
    for start, middle, stop, swap in zip(starts, b_starts, stops, rng.random(len(starts)) < 0.5, strict=True):
        a, b = (int(start), int(middle)), (int(middle), int(stop))
        spans.append(PairSpan(b, a, IS_SWAPPED) if swap else PairSpan(a, b, IS_NEXT))
    return spans


def _couples(order: np.ndarray, documents: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield pairs of neighbors in `order` that belong to different documents.

    If one document has more chunks than all others together, its excess chunks remain single and thus unlabeled.
    """
    waiting: list[int] = []  # all from the same document
    for i in order:
        if waiting and documents[waiting[-1]] != documents[i]:
            yield int(i), waiting.pop()
        else:
            waiting.append(int(i))


def _choose_b_starts(
    corpus: Corpus, starts: np.ndarray, stops: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Choose where B begins in each chunk: at a random sentence, or at a random word if no sentence begins inside.

    Returns:
        int64 [n]: token position of B's start. bool [n]: true if a sentence begins there.
    """
    first = np.searchsorted(corpus.sentence_starts, starts, side="right")
    last = np.searchsorted(corpus.sentence_starts, stops, side="left")
    draws = rng.random(len(starts))
    at_sentence = last > first
    b_starts = corpus.sentence_starts[np.where(at_sentence, first + (draws * (last - first)).astype(np.int64), 0)]
    for i in np.flatnonzero(~at_sentence):
        _, words = corpus.slice(int(starts[i]), int(stops[i]))
        candidates = np.flatnonzero(words[1:]) + 1
        candidates = candidates if len(candidates) else np.arange(1, len(words))
        b_starts[i] = starts[i] + candidates[int(draws[i] * len(candidates))]
    return b_starts, at_sentence
