"""Merges of adjacent pieces: which pair comes next, and how a merge changes the words and their counts.

All words lie end to end in arrays with one position per character. A piece is stored at the position of its first
character; the other positions are empty. A merge is NumPy over the positions that it touches, so 30,000 merges of a
million words take seconds.

    P positions     V pieces        the pair of pieces a, b is the number a * PAIR_BASE + b
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np

from bertie.base import console

Criterion = Literal["frequency", "likelihood"]
PAIR_BASE = 1 << 31
NONE = -1


class SegmentedWords:
    """The words of a text, segmented into pieces, with the counts of pieces and of adjacent pairs.

    Attributes:
        piece: int32 [P], NONE at empty positions.
        left: int32 [P], position of the previous piece of the word, NONE at its start.
        right: int32 [P], position of the next piece of the word, NONE at its end.
        weight: int64 [P], occurrences of the word.
        counts: pair -> occurrences, without pairs that do not occur.
        totals: int64 [V], occurrences of each piece.
        total: Their sum.
    """

    def __init__(self, piece: np.ndarray, lengths: np.ndarray, counts: np.ndarray, vocab_size: int):
        """Start from words of single characters.

        Args:
            piece: int32 [P], the characters of all words, end to end.
            lengths: int64 [words], characters of each word, at least 1.
            counts: int64 [words], occurrences of each word.
            vocab_size: V.
        """
        self.piece = piece.copy()
        self.weight = np.repeat(counts, lengths)
        self.totals = np.zeros(vocab_size, np.int64)
        np.add.at(self.totals, piece, self.weight)
        self.total = int(self.weight.sum())
        positions = np.arange(len(piece), dtype=np.int32)
        ends = np.cumsum(lengths)
        self.left, self.right = positions - 1, positions + 1
        self.left[ends - lengths] = NONE
        self.right[ends - 1] = NONE
        self.counts: dict[int, int] = {}
        # pair -> positions of its first piece. Earlier merges may have made some of them invalid.
        self._positions: dict[int, list[np.ndarray]] = {}
        self._add_pairs(positions[self.right != NONE])

    def merge(self, pair: int, new: int) -> np.ndarray:
        """Replace every occurrence of the pair, from left to right, by the piece `new`.

        Returns:
            The pairs whose counts changed, int64 [n].
        """
        first = self._occurrences(pair)
        second = self.right[first]
        before, after = self.left[first], self.right[second]
        follows = after != NONE
        lost = self._remove_pairs(np.concatenate([first, before[before != NONE], second[follows]]))
        self.piece[first] = new
        self.piece[second] = NONE
        self.right[first] = after
        self.left[after[follows]] = first[follows]
        before = self.left[first]
        gained = self._add_pairs(np.concatenate([first[follows], before[before != NONE]]))
        merged = int(self.weight[first].sum())
        for piece, change in ((pair // PAIR_BASE, -merged), (pair % PAIR_BASE, -merged), (new, merged)):
            self.totals[piece] += change
        self.total -= merged
        return np.union1d(lost, gained)

    def _occurrences(self, pair: int) -> np.ndarray:
        """Return the positions of the pair, int32 [n], sorted. Of overlapping occurrences (aaa), every second one."""
        a, b = divmod(pair, PAIR_BASE)
        first = np.unique(np.concatenate(self._positions.pop(pair)))
        first = first[(self.piece[first] == a) & (self.right[first] != NONE)]
        first = first[self.piece[self.right[first]] == b]
        if a == b and len(first) > 1:
            number = np.arange(len(first))
            begins = np.concatenate([[True], self.right[first[:-1]] != first[1:]])
            first = first[(number - np.maximum.accumulate(np.where(begins, number, 0))) % 2 == 0]
        return first

    def _pairs(self, first: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], list[int]]:
        """Group positions, which may repeat, by the pair that starts there.

        Returns:
            The distinct pairs, int64 [n]; the positions of each; the weighted number of occurrences of each.
        """
        first = np.unique(first)
        pairs = self.piece[first].astype(np.int64) * PAIR_BASE + self.piece[self.right[first]]
        order = np.argsort(pairs, kind="stable")
        pairs, first = pairs[order], first[order]
        starts = np.flatnonzero(np.diff(pairs, prepend=NONE))
        if not len(starts):
            return pairs, [], []
        bounds = [*starts.tolist(), len(first)]
        positions = [first[start:stop] for start, stop in pairwise(bounds)]
        return pairs[starts], positions, np.add.reduceat(self.weight[first], starts).tolist()

    def _add_pairs(self, first: np.ndarray) -> np.ndarray:
        """Count the pairs that start at these positions; return the distinct pairs."""
        pairs, positions, counts = self._pairs(first)
        for pair, of_pair, count in zip(pairs.tolist(), positions, counts, strict=True):
            self._positions.setdefault(pair, []).append(of_pair)
            self.counts[pair] = self.counts.get(pair, 0) + count
        return pairs

    def _remove_pairs(self, first: np.ndarray) -> np.ndarray:
        """Undo `_add_pairs`, before a merge changes the pieces at these positions."""
        pairs, _, counts = self._pairs(first)
        for pair, count in zip(pairs.tolist(), counts, strict=True):
            self.counts[pair] -= count
            if not self.counts[pair]:
                del self.counts[pair]
                self._positions.pop(pair, None)
        return pairs


class FrequencyQueue:
    """Merge the most frequent pair first, as byte-pair encoding does (Sennrich et al. 2016).

    A pair with fewer than `min_frequency` occurrences is never merged.
    """

    def __init__(self, words: SegmentedWords, min_frequency: int):
        self.counts, self.min_frequency = words.counts, min_frequency
        self.heap = [(-count, pair) for pair, count in words.counts.items() if count >= min_frequency]
        heapq.heapify(self.heap)

    def update(self, changed: np.ndarray, merged: int) -> None:  # noqa: ARG002 - LikelihoodQueue needs it
        """Take note that the pair `merged` was merged, which changed the counts of the pairs `changed`, int64 [n]."""
        for pair in changed.tolist():
            if (count := self.counts.get(pair, 0)) >= self.min_frequency:
                heapq.heappush(self.heap, (-count, pair))

    def pop(self) -> int | None:
        """Return the best pair, on ties the one with the lowest number, or None if no pair is left."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.counts.get(pair) == -count:
                return pair
        return None


class LikelihoodQueue:
    """Merge first the pair that most increases the likelihood of the text under a unigram model of its pieces.

    This is WordPiece as Schuster and Nakajima (2012) define it, the method that BERT's vocabulary was made with. With N
    pieces in the text, c occurrences of the pair a, b, and f(x) = x ln x, a merge adds to the log-likelihood
    f(c) + f(c_a - c) - f(c_a) + f(c_b - c) - f(c_b) - f(N - c) + f(N).

    Every merge changes every score. But N only falls, which lowers scores, so a score can rise only if the count of the
    pair changed or the pair shares a piece with the merged one. Each step therefore scores only candidates: the
    MAX_CANDIDATES best pairs at the last refresh, and every pair that has risen above their threshold since. Once the
    best candidate falls below the threshold, a refresh scores all pairs and selects new candidates. So does the arrival
    of MAX_NEW_PAIRS pairs that did not exist at the last refresh.

    A pair with fewer than `min_frequency` occurrences is never merged.
    """

    MAX_CANDIDATES = 8192
    MAX_NEW_PAIRS = 8192

    def __init__(self, words: SegmentedWords, min_frequency: int):
        self.words, self.min_frequency = words, min_frequency
        self._refresh()

    def update(self, changed: np.ndarray, merged: int) -> None:
        """Take note of a merge, as `FrequencyQueue.update`."""
        counts = np.fromiter((self.words.counts.get(pair, 0) for pair in changed.tolist()), np.int64, len(changed))
        slots = np.searchsorted(self.pairs[: self.old], changed)
        known = self.pairs[np.minimum(slots, self.old - 1)] == changed
        self.counts[slots[known]] = counts[known]
        for pair, count in zip(changed[~known].tolist(), counts[~known].tolist(), strict=True):
            if pair in self.new_slots or count >= self.min_frequency:
                self.counts[self._slot(pair)] = count
        new = np.arange(self.old, self.old + len(self.new_slots))
        may_rise = np.concatenate([slots[known], new, *self._sharing(merged)])
        may_rise = np.unique(may_rise[~self.is_candidate[may_rise]])
        self.is_candidate[may_rise[self._scores(may_rise) >= self.threshold]] = True

    def pop(self) -> int | None:
        """Return the best pair, as `FrequencyQueue.pop`."""
        for refresh in (len(self.new_slots) >= self.MAX_NEW_PAIRS, True):
            if refresh:
                self._refresh()
            slots = np.flatnonzero(self.is_candidate)
            scores = self._scores(slots)
            best = scores.max(initial=0)
            if best > 0 and best >= self.threshold:
                return int(self.pairs[slots[scores == best]].min())
        return None

    def _slot(self, pair: int) -> int:
        slot = self.new_slots.setdefault(pair, self.old + len(self.new_slots))
        self.pairs[slot] = pair
        return slot

    def _sharing(self, merged: int) -> list[np.ndarray]:
        """Return the slots of pairs, known at the last refresh, that share a piece with the merged pair."""
        slots = []
        for piece in {*divmod(merged, PAIR_BASE)}:
            start, stop = np.searchsorted(self.pairs[: self.old], [piece * PAIR_BASE, (piece + 1) * PAIR_BASE])
            slots.append(np.arange(start, stop))
            start, stop = np.searchsorted(self.seconds, [piece, piece + 1])
            slots.append(self.by_second[start:stop])
        return slots

    def _refresh(self) -> None:
        """Score all pairs and select the candidates. Slots: the current pairs, sorted, then space for new ones."""
        live = {pair: count for pair, count in self.words.counts.items() if count >= self.min_frequency}
        pairs = np.fromiter(live, np.int64, len(live))
        order = np.argsort(pairs)
        space = np.zeros(self.MAX_NEW_PAIRS * 64, np.int64)
        self.old = len(pairs)
        self.pairs = np.concatenate([pairs[order], space])
        self.counts = np.concatenate([np.fromiter(live.values(), np.int64, len(live))[order], space])
        self.by_second = np.argsort(self.pairs[: self.old] % PAIR_BASE, kind="stable")
        self.seconds = (self.pairs[: self.old] % PAIR_BASE)[self.by_second]
        self.new_slots: dict[int, int] = {}  # pair -> slot, of pairs that are new since
        scores = self._scores(np.arange(self.old))
        self.threshold = (
            np.partition(scores, -self.MAX_CANDIDATES)[-self.MAX_CANDIDATES]
            if self.old > self.MAX_CANDIDATES
            else -np.inf
        )
        self.is_candidate = np.zeros(len(self.pairs), bool)
        self.is_candidate[: self.old] = scores >= self.threshold

    def _scores(self, slots: np.ndarray) -> np.ndarray:
        """Return the gain in log-likelihood, nats, float32 [n]; -inf for pairs below `min_frequency`.

        Scores are rounded to float32: equal gains must compare as equal although logarithms differ in their last bits
        between machines.
        """
        pairs, c = self.pairs[slots], self.counts[slots].astype(np.float64)
        a, b = pairs // PAIR_BASE, pairs % PAIR_BASE
        total, c_a, c_b = float(self.words.total), self.words.totals[a], self.words.totals[b]
        with np.errstate(divide="ignore", invalid="ignore"):  # pairs and pieces that no longer occur
            gain = c * (np.log(c) + np.log(total)) - _rest(total, c)
            used = np.minimum(2 * c, c_a)  # if a == b: overlapping occurrences (aaa) cannot all be merged
            same_piece = _rest(c_a, used) - used * np.log(c_a)
            two_pieces = _rest(c_a, c) + _rest(c_b, c) - c * (np.log(c_a) + np.log(c_b))
        gain += np.where(a == b, same_piece, two_pieces)
        return np.where(self.counts[slots] >= self.min_frequency, gain, -np.inf).astype(np.float32)


def _rest(whole: np.ndarray | float, part: np.ndarray) -> np.ndarray:
    """Compute f(whole - part) - f(whole) + part ln whole, for f(x) = x ln x, without subtracting large numbers."""
    left = whole - part
    return np.where(left > 0, left * np.log1p(-part / whole), 0.0)


PairQueue = FrequencyQueue | LikelihoodQueue
"""Order in which pairs are merged."""
QUEUES: dict[Criterion, type[PairQueue]] = {"frequency": FrequencyQueue, "likelihood": LikelihoodQueue}


def merge_pieces(
    pieces: list[str], words: SegmentedWords, queue: PairQueue, vocab_size: int, join: Callable[[str, str], str]
) -> list[tuple[str, str]]:
    """Merge pairs and append the new pieces to `pieces`, until there are `vocab_size` or no pair is left.

    Args:
        pieces: The entries so far, in id order.
        words: The words, segmented into these pieces.
        queue: The pairs in the order in which they are merged.
        vocab_size: Number of entries to reach.
        join: Returns the piece of a merged pair.

    Returns:
        The pairs merged, in order.
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    merges = []
    with console.progress("merge pieces", vocab_size, "entries", done=len(pieces)) as bar:
        while len(pieces) < vocab_size and (pair := queue.pop()) is not None:
            left, right = pieces[pair // PAIR_BASE], pieces[pair % PAIR_BASE]
            merges.append((left, right))
            merged = join(left, right)
            if merged not in ids:  # another pair may have given the same piece before
                ids[merged] = len(pieces)
                pieces.append(merged)
                bar.advance()
            queue.update(words.merge(pair, ids[merged]), pair)
    return merges
