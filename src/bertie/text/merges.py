"""Which two neighbouring pieces of words to join next, and what joining them changes.

Words lie end to end as pieces, each at the place of its first character; a piece that was joined to the one before is
gone from its place. Everything is NumPy over the places that a merge touches, so that 30,000 merges of a million words
take seconds.

    P places        V pieces        a pair of pieces a, b is the number a * PAIR + b
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np

Criterion = Literal["frequency", "likelihood"]
PAIR = 1 << 31
NONE = -1


class Words:
    """Words as pieces.

    piece: int32 [P]; left, right: int32 [P], the places of the neighbours in the word, NONE at its ends.
    weight: int64 [P], how often the word occurs; counts: pair → how often it occurs, where it does;
    totals: int64 [V], how often each piece occurs; everything: their sum.
    """

    def __init__(self, piece: np.ndarray, lengths: np.ndarray, counts: np.ndarray, vocab_size: int):
        """piece: int32 [P], of all words end to end; lengths, counts: int64 [words]; no word is empty."""
        self.piece = piece.copy()
        self.weight = np.repeat(counts, lengths)
        self.totals = np.zeros(vocab_size, np.int64)
        np.add.at(self.totals, piece, self.weight)
        self.everything = int(self.weight.sum())
        places = np.arange(len(piece), dtype=np.int32)
        ends = np.cumsum(lengths)
        self.left, self.right = places - 1, places + 1
        self.left[ends - lengths] = NONE
        self.right[ends - 1] = NONE
        self.counts: dict[int, int] = {}
        self._places: dict[int, list[np.ndarray]] = {}  # of the first piece of every pair; some are out of date
        self._enter(places[self.right != NONE])

    def merge(self, pair: int, new: int) -> np.ndarray:
        """Join the pair everywhere, from left to right, into piece `new`. Returns the pairs whose counts changed."""
        first = self._standing(pair)
        second = self.right[first]
        before, after = self.left[first], self.right[second]
        follows = after != NONE
        lost = self._leave(np.concatenate([first, before[before != NONE], second[follows]]))
        self.piece[first] = new
        self.piece[second] = NONE
        self.right[first] = after
        self.left[after[follows]] = first[follows]
        before = self.left[first]
        gained = self._enter(np.concatenate([first[follows], before[before != NONE]]))
        joined = int(self.weight[first].sum())
        for piece, change in ((pair // PAIR, -joined), (pair % PAIR, -joined), (new, joined)):
            self.totals[piece] += change
        self.everything -= joined
        return np.union1d(lost, gained)

    def _standing(self, pair: int) -> np.ndarray:
        """Where the pair stands now, int32 [n], sorted; of overlapping ones (aaa) every other."""
        a, b = divmod(pair, PAIR)
        first = np.unique(np.concatenate(self._places.pop(pair)))
        first = first[(self.piece[first] == a) & (self.right[first] != NONE)]
        first = first[self.piece[self.right[first]] == b]
        if a == b and len(first) > 1:
            number = np.arange(len(first))
            begins = np.concatenate([[True], self.right[first[:-1]] != first[1:]])
            first = first[(number - np.maximum.accumulate(np.where(begins, number, 0))) % 2 == 0]
        return first

    def _pairs(self, first: np.ndarray) -> tuple[np.ndarray, list[np.ndarray], list[int]]:
        """The pairs that begin at some places, which may repeat: which, where each stands, how often each occurs."""
        first = np.unique(first)
        pairs = self.piece[first].astype(np.int64) * PAIR + self.piece[self.right[first]]
        order = np.argsort(pairs, kind="stable")
        pairs, first = pairs[order], first[order]
        starts = np.flatnonzero(np.diff(pairs, prepend=NONE))
        if not len(starts):
            return pairs, [], []
        bounds = [*starts.tolist(), len(first)]
        where = [first[start:stop] for start, stop in pairwise(bounds)]
        return pairs[starts], where, np.add.reduceat(self.weight[first], starts).tolist()

    def _enter(self, first: np.ndarray) -> np.ndarray:
        found, where, counts = self._pairs(first)
        for pair, places, count in zip(found.tolist(), where, counts, strict=True):
            self._places.setdefault(pair, []).append(places)
            self.counts[pair] = self.counts.get(pair, 0) + count
        return found

    def _leave(self, first: np.ndarray) -> np.ndarray:
        found, _, counts = self._pairs(first)
        for pair, count in zip(found.tolist(), counts, strict=True):
            self.counts[pair] -= count
            if not self.counts[pair]:
                del self.counts[pair]
                self._places.pop(pair, None)
        return found


class Queue(Protocol):
    """Which pair is next."""

    def update(self, changed: np.ndarray, merged: int) -> None:
        """The counts of some pairs changed, int64 [n], because `merged` was joined."""
        ...

    def pop(self) -> int | None:
        """The best pair, of equally good ones the lowest, if there is one left."""
        ...


class ByFrequency:
    """The pair that occurs most often: byte-pair encoding's rule (Sennrich et al. 2016)."""

    def __init__(self, words: Words, least: int):
        """least: a pair that occurs less often is never joined."""
        self.counts, self.least = words.counts, least
        self.heap = [(-count, pair) for pair, count in words.counts.items() if count >= least]
        heapq.heapify(self.heap)

    def update(self, changed: np.ndarray, merged: int) -> None:  # noqa: ARG002 - the other queue needs it
        for pair in changed.tolist():
            if (count := self.counts.get(pair, 0)) >= self.least:
                heapq.heappush(self.heap, (-count, pair))

    def pop(self) -> int | None:
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if self.counts.get(pair) == -count:
                return pair
        return None


class ByLikelihood:
    """The pair that, joined, makes the text likeliest when pieces are drawn one by one by their frequencies.

    Schuster and Nakajima (2012), whose WordPiece BERT's is. With N pieces in the text, a pair that occurs c times, and
    f(x) = x ln x, joining it adds f(c) + f(c_a - c) - f(c_a) + f(c_b - c) - f(c_b) - f(N - c) + f(N).

    Every merge changes every score. But N only falls, which lowers them, so that only pairs that changed, or share a
    piece with the merged one, can rise. Scored at every step are those and the `NEAR` best, until the best of these
    falls below what was left out: then all are scored and the near ones chosen anew.
    """

    NEAR = 8192
    YOUNG = 8192  # pairs met since then

    def __init__(self, words: Words, least: int):
        """least: a pair that occurs less often is never joined."""
        self.words, self.least = words, least
        self._refresh()

    def update(self, changed: np.ndarray, merged: int) -> None:
        counts = np.fromiter((self.words.counts.get(pair, 0) for pair in changed.tolist()), np.int64, len(changed))
        at = np.searchsorted(self.pairs[: self.old], changed)
        known = self.pairs[np.minimum(at, self.old - 1)] == changed
        self.counts[at[known]] = counts[known]
        for pair, count in zip(changed[~known].tolist(), counts[~known].tolist(), strict=True):
            if pair in self.young or count >= self.least:
                self.counts[self._slot(pair)] = count
        rising = np.concatenate([at[known], np.arange(self.old, self.old + len(self.young)), *self._sharing(merged)])
        rising = np.unique(rising[~self.near[rising]])
        self.near[rising[self._scores(rising) >= self.threshold]] = True

    def pop(self) -> int | None:
        for refresh in (len(self.young) >= self.YOUNG, True):
            if refresh:
                self._refresh()
            slots = np.flatnonzero(self.near)
            scores = self._scores(slots)
            best = scores.max(initial=0)
            if best > 0 and best >= self.threshold:
                return int(self.pairs[slots[scores == best]].min())
        return None

    def _slot(self, pair: int) -> int:
        slot = self.young.setdefault(pair, self.old + len(self.young))
        self.pairs[slot] = pair
        return slot

    def _sharing(self, merged: int) -> list[np.ndarray]:
        """The slots of old pairs that share a piece with the merged one."""
        found = []
        for piece in {*divmod(merged, PAIR)}:
            start, stop = np.searchsorted(self.pairs[: self.old], [piece * PAIR, (piece + 1) * PAIR])
            found.append(np.arange(start, stop))
            start, stop = np.searchsorted(self.seconds, [piece, piece + 1])
            found.append(self.by_second[start:stop])
        return found

    def _refresh(self) -> None:
        """Score all pairs. Slots: first the pairs of now, sorted, then room for those to come."""
        live = {pair: count for pair, count in self.words.counts.items() if count >= self.least}
        old = np.fromiter(live, np.int64, len(live))
        order = np.argsort(old)
        room = np.zeros(self.YOUNG * 64, np.int64)
        self.old = len(old)
        self.pairs = np.concatenate([old[order], room])
        self.counts = np.concatenate([np.fromiter(live.values(), np.int64, len(live))[order], room])
        self.by_second = np.argsort(self.pairs[: self.old] % PAIR, kind="stable")
        self.seconds = (self.pairs[: self.old] % PAIR)[self.by_second]
        self.young: dict[int, int] = {}  # pair → slot
        scores = self._scores(np.arange(self.old))
        self.threshold = np.partition(scores, -self.NEAR)[-self.NEAR] if self.old > self.NEAR else -np.inf
        self.near = np.zeros(len(self.pairs), bool)
        self.near[: self.old] = scores >= self.threshold

    def _scores(self, slots: np.ndarray) -> np.ndarray:
        """Nats, float32 [n]; -inf for pairs that are not to be joined.

        Rounded, so that pairs which gain the same compare as equal, whatever the last bits of a machine's logarithms.
        """
        pairs, c = self.pairs[slots], self.counts[slots].astype(np.float64)
        a, b = pairs // PAIR, pairs % PAIR
        every, of_a, of_b = float(self.words.everything), self.words.totals[a], self.words.totals[b]
        with np.errstate(divide="ignore", invalid="ignore"):  # where there are none left
            gain = c * (np.log(c) + np.log(every)) - _rest(every, c)
            both = np.minimum(2 * c, of_a)  # overlapping pairs (aaa) are more than can be joined
            twice = _rest(of_a, both) - both * np.log(of_a)
            once = _rest(of_a, c) + _rest(of_b, c) - c * (np.log(of_a) + np.log(of_b))
        gain += np.where(a == b, twice, once)
        return np.where(self.counts[slots] >= self.least, gain, -np.inf).astype(np.float32)


def _rest(whole: np.ndarray | float, part: np.ndarray) -> np.ndarray:
    """f(whole - part) - f(whole) + part ln whole, for f(x) = x ln x, without the difference of large numbers."""
    left = whole - part
    return np.where(left > 0, left * np.log1p(-part / whole), 0.0)


CRITERIA: dict[Criterion, type[ByFrequency] | type[ByLikelihood]] = {
    "frequency": ByFrequency,
    "likelihood": ByLikelihood,
}
