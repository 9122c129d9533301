"""Which tokens masked language modeling selects: single tokens, whole words, spans or n-grams.

Every function selects about the same share of each sequence's ordinary tokens, which are those that are not special. Whole
units (words, spans, n-grams) cannot match the share in every sequence, so they match it in the row: the row has as many
selected tokens as with single tokens, as far as units of a fitting size exist. Each sequence with ordinary tokens has at
least one selected unit, unless the row has more sequences than it may have selected tokens.

Dimensions in shapes:

    T  packed tokens of the row
    S  sequences of the row
    N  ordinary tokens
    W  words
    U  units, the candidates for selection
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.contracts import Batch, Targets
from bertie.objectives.objective import Labeling

Masking = Literal["tokens", "words", "spans", "ngrams"]

_LENGTHS = np.arange(1, 11)
# SpanBERT (Joshi et al. 2020, section 3.1): a geometric distribution with p = 0.2, truncated at 10 words. Its mean is 3.8.
SPAN_LENGTHS = 0.8**_LENGTHS / (0.8**_LENGTHS).sum()
LEAD = 64
"""Words before the row at which the sequence of random spans begins, so that a span starts at every word equally often."""


class Selection(NamedTuple):
    """The selected tokens of a row."""

    positions: np.ndarray
    """int64 [selected tokens]: sorted positions in T."""
    unit: np.ndarray
    """int64 [selected tokens]: number of the unit that each token belongs to, from 0 and ascending."""


@dataclass(frozen=True, eq=False)
class MaskedSpans:
    """Spans that were selected in a row. N: number of their tokens."""

    index: np.ndarray
    """int64 [N]: positions of the tokens in T, sorted."""
    label: np.ndarray
    """int32 [N]: the original tokens."""
    first: np.ndarray
    """int64 [N]: position of the first token of each token's span."""
    last: np.ndarray
    """int64 [N]: position of the last token of each token's span."""
    capacity: int
    """Largest N of a row of this size."""


@dataclass(frozen=True, eq=False)
class MaskedRow:
    """The notes of masked language modeling for the objectives after it."""

    original_ids: np.ndarray
    """int32 [T]: `input_ids` before masking."""
    targets: Targets
    """The targets."""
    spans: MaskedSpans | None
    """The spans, with `masking = "spans"`."""


class _Row(NamedTuple):
    """The ordinary tokens of a row."""

    positions: np.ndarray
    """int64 [N]: positions in T."""
    sequence: np.ndarray
    """int64 [N]: their sequences."""
    counts: np.ndarray
    """int64 [S]: tokens of each sequence."""
    quota: np.ndarray
    """int64 [S]: tokens to select in each sequence."""


@dataclass(frozen=True, eq=False)
class _Units:
    """Candidates for selection, each a range of consecutive ordinary tokens of one sequence. They do not overlap."""

    first: np.ndarray
    """int64 [U]: the first token, as an index into N."""
    length: np.ndarray
    """int64 [U]: number of tokens."""
    sequence: np.ndarray
    """int64 [U]: number of the sequence."""


def select(
    masking: Masking,
    batch: Batch,
    labeling: Labeling,
    share: float,
    capacity: int,
    unmasked: float = 0.0,
    longest_ngram: int = 3,
) -> Selection:
    """Select the tokens that masked language modeling predicts.

    Args:
        masking: The kind of units.
        batch: A row of T packed tokens.
        labeling: The random numbers, and the tokenizer, whose special tokens are never selected.
        share: Share of each sequence's ordinary tokens to select.
        capacity: Maximum number of selected tokens.
        unmasked: Probability that a sequence has no selected token at all.
        longest_ngram: Words of the longest n-gram.
    """
    rng = labeling.rng
    ordinary = ~np.isin(batch.input_ids, labeling.tokenizer.special_ids)
    if unmasked > 0:
        ordinary &= np.repeat(rng.random(len(batch.pair_label)) >= unmasked, batch.ragged.lengths)
    positions = np.flatnonzero(ordinary)
    sequence = np.searchsorted(batch.ragged.cu_seqlens, positions, side="right") - 1
    counts = np.bincount(sequence, minlength=len(batch.pair_label))
    quota = np.maximum(1, np.rint(share * counts)).astype(np.int64)
    row = _Row(positions, sequence, counts, quota)
    if masking == "tokens":
        return _select_tokens(row, capacity, rng)
    labeling.tokenizer.require_words(f'masking = "{masking}"')
    # The first token of every word, as indices into N, followed by N. A word whose beginning is truncated starts later.
    starts = np.append(np.flatnonzero(batch.word_starts[positions] | _breaks(row)), len(positions))
    if masking == "words":
        units = _Units(starts[:-1], np.diff(starts), sequence[starts[:-1]])
    elif masking == "spans":
        units = _runs_of_words(row, starts, SPAN_LENGTHS, 1, rng)
    else:
        units = _runs_of_words(row, starts, ngram_lengths(longest_ngram), 0, rng)
    chosen = _choose(units, quota, min(capacity, int(quota[counts > 0].sum())), capacity, rng)
    first, length = units.first[chosen], units.length[chosen]
    tokens = np.arange(length.sum()) + np.repeat(first - (np.cumsum(length) - length), length)
    return Selection(positions[tokens], np.repeat(np.arange(len(first)), length))


def ngram_lengths(longest: int) -> np.ndarray:
    """Return the probabilities of n-grams of 1, 2, …, `longest` words, proportional to 1 / n.

    `longest` is 3 in ALBERT (Lan et al. 2020, section 3.1).
    """
    shares = 1 / np.arange(1, longest + 1)
    return shares / shares.sum()


def spans_of(selection: Selection, labels: np.ndarray, capacity: int) -> MaskedSpans:
    """Return the selected units with the original tokens, `labels`, for the span boundary objective."""
    first = np.searchsorted(selection.unit, selection.unit)
    last = np.searchsorted(selection.unit, selection.unit, side="right") - 1
    return MaskedSpans(selection.positions, labels, selection.positions[first], selection.positions[last], capacity)


def _select_tokens(row: _Row, capacity: int, rng: np.random.Generator) -> Selection:
    """Select exactly `quota` tokens of every sequence."""
    positions, sequence, counts, quota = row
    shuffled = np.lexsort((rng.random(len(positions)), sequence))
    rank = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
    selected = np.sort(positions[shuffled[rank < quota[sequence]]])
    if len(selected) > capacity:  # many very short sequences, each with its minimum of one token
        selected = np.sort(rng.choice(selected, capacity, replace=False))
    return Selection(selected, np.arange(len(selected)))


def _breaks(row: _Row) -> np.ndarray:
    """Return where an ordinary token follows a special token or another sequence. bool [N]."""
    positions, sequence, *_ = row
    breaks = np.ones(len(positions), bool)
    breaks[1:] = (positions[1:] != positions[:-1] + 1) | (sequence[1:] != sequence[:-1])
    return breaks


def _runs_of_words(
    row: _Row, starts: np.ndarray, distribution: np.ndarray, gap: int, rng: np.random.Generator
) -> _Units:
    """Lay runs of words of random lengths along the row, from left to right.

    A run ends at the end of its text at the latest: it never contains a special token. It has no more tokens than its
    sequence's share, unless it is a single word.

    Args:
        row: The ordinary tokens.
        starts: First token of every word, as indices into N, followed by N.
        distribution: Probabilities of the lengths 1, 2, … in words.
        gap: Words between two runs. With a gap, the tokens beside a selected run are never selected.
        rng: The generator.
    """
    words = len(starts) - 1
    most = (words + LEAD) // (1 + gap) + 1  # enough runs to cover the row, even if all have a single word
    lengths = np.searchsorted(distribution.cumsum()[:-1], rng.random(most), side="right") + 1
    begin = np.cumsum(lengths + gap) - (lengths + gap) - LEAD
    inside = (begin >= 0) & (begin < words)
    begin, lengths = begin[inside], lengths[inside]
    owner = row.sequence[starts[:-1]]

    # A sequence without the beginning of a run gets a run of one word.
    first_word = np.flatnonzero(np.diff(owner, prepend=-1))
    empty = np.diff(np.append(np.searchsorted(begin, first_word), len(begin))) == 0
    count = np.diff(np.append(first_word, words))[empty]
    begin = np.concatenate([begin, first_word[empty] + (rng.random(len(count)) * count).astype(np.int64)])
    lengths = np.concatenate([lengths, np.ones(len(count), np.int64)])

    ends_of_texts = np.append(np.flatnonzero(_breaks(row)[starts[:-1]])[1:], words)
    end = np.minimum(begin + lengths, ends_of_texts[np.searchsorted(ends_of_texts, begin, side="right")])
    fitting = np.searchsorted(starts, starts[begin] + row.quota[owner[begin]], side="right") - 1
    end = np.maximum(begin + 1, np.minimum(end, fitting))
    return _Units(starts[begin], starts[end] - starts[begin], owner[begin])


def _choose(units: _Units, quota: np.ndarray, target: int, capacity: int, rng: np.random.Generator) -> np.ndarray:
    """Choose units at random, with the same probability for long and short ones, until `target` tokens are selected.

    The units of a sequence lie in random order on a circle. Those are chosen whose middle is in an arc that begins at a
    random point and is as long as the sequence's share. The first one is chosen in any case. Then random units of the row
    are dropped or added, until the number of tokens is right.

    Returns:
        Numbers of the chosen units, in the order of the row.
    """
    if not len(units.first):
        return units.first
    order = np.argsort(units.sequence + rng.random(len(units.first)))
    length, sequence = units.length[order], units.sequence[order]
    end = np.cumsum(length)
    begins = np.flatnonzero(np.diff(sequence, prepend=-1))  # the first unit of each sequence
    per_sequence = np.diff(np.append(begins, len(order)))
    circle = np.diff(end[np.append(begins[1:], len(order)) - 1], prepend=0)
    origin = end[begins] - length[begins] + rng.random(len(begins)) * circle
    distance = (end - length / 2 - np.repeat(origin, per_sequence)) % np.repeat(circle, per_sequence)
    needed = distance == np.repeat(np.minimum.reduceat(distance, begins), per_sequence)
    chosen = needed | (distance < quota[sequence])

    shuffled = rng.permutation(len(order))
    excess = int(length[chosen].sum()) - target
    if excess > 0:
        dropping = shuffled[chosen[shuffled] & ~needed[shuffled]]
        chosen[dropping[: np.searchsorted(np.cumsum(length[dropping]), excess) + 1]] = False
        if (excess := int(length[chosen].sum()) - capacity) > 0:  # many very short sequences
            dropping = shuffled[chosen[shuffled]]
            chosen[dropping[: np.searchsorted(np.cumsum(length[dropping]), excess) + 1]] = False
    missing = target - int(length[chosen].sum())
    while missing > 0:
        adding = shuffled[~chosen[shuffled] & (length[shuffled] <= missing)]
        added = adding[np.cumsum(length[adding]) <= missing]
        if not len(added):
            break
        chosen[added] = True
        missing -= int(length[added].sum())
    # Sorted by position, not by number: single words for otherwise empty sequences are at the end of the list.
    numbers = order[chosen]
    return numbers[np.argsort(units.first[numbers])]
