"""Training of a unigram vocabulary (Kudo 2018): start from frequent substrings, and drop those that are missed the least.

A word has the probability of all its segmentations into pieces. Expectation maximization estimates the probabilities of
the pieces; then the pieces whose loss lowers the likelihood the least are dropped, until the vocabulary has its size.
Everything is computed from sorted counts in one thread and rounded, so the same counts give the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bertie.base import console
from bertie.corpus.word_counts import require_size, require_trainable
from bertie.tokenizers.library_backend import ROLES, ROLES_ORDER

LONGEST_PIECE = 16  # characters, as in SentencePiece
LONGEST_WORD = 64  # characters; longer words, such as sentences without blanks, are trained in parts
MOST_CHARACTERS = 4_000_000  # of different words; the most frequent words are taken, and a warning says how many
COVERAGE = 0.9995  # share of the text's characters that are entries, as in SentencePiece
KEPT = 0.75  # share of the pieces that a round keeps
STEPS = 2  # of expectation maximization in a round
DECIMALS = 6  # of a score: sums in another order differ later


def train(
    counts: Mapping[str, int], *, vocab_size: int, min_frequency: int = 2, reserved: Sequence[str] = ()
) -> list[tuple[str, float]]:
    """Train a vocabulary on word counts. The same counts give the same vocabulary.

    Args:
        counts: word -> occurrences, from `word_counts.count_words` with `library_backend.UNIGRAM_RULES`.
        vocab_size: Number of entries; fewer if the text is too small to fill them.
        min_frequency: Substrings with fewer occurrences are no pieces.
        reserved: Entries that follow the special tokens.

    Returns:
        The entries with their scores (log probabilities) in id order: special tokens, `reserved`, pieces, the mask.

    Raises:
        UsageError: An argument is out of range, or `vocab_size` cannot hold the characters.
        UserError: The text is empty.

    Warns if the text has more different words than are read.
    """
    require_trainable(counts, vocab_size=vocab_size, min_frequency=min_frequency)
    alphabet = _alphabet(counts)
    fixed = len(ROLES_ORDER) + len(reserved) + 1
    size = vocab_size - fixed
    require_size(vocab_size, len(alphabet) + fixed)
    words = _Words.of(_most_frequent(counts), alphabet)
    pieces = _seeds(words, min_frequency, max(10 * vocab_size, 100_000), len(alphabet))
    scores = np.log(np.array([count for _, count in pieces]) / sum(count for _, count in pieces))
    taken = [piece for piece, _ in pieces]
    while True:
        lattice = words.lattice(taken)
        for _ in range(STEPS - 1):
            scores = _scores(lattice.expected(scores))
        expected = lattice.expected(scores)
        scores = _scores(expected)
        if len(taken) <= size:
            break
        keep = _most_missed(taken, scores, expected, max(size, int(KEPT * len(taken))))
        taken, scores = [taken[i] for i in keep], scores[keep]
    order = sorted(range(len(taken)), key=lambda i: (-scores[i], taken[i]))
    lowest = float(10 * scores.min())  # such entries are matched by no text
    first = [(token, 0.0) for token in ROLES_ORDER] + [(token, lowest) for token in reserved]
    spelled = [("".join(alphabet[c] for c in taken[i]), round(float(scores[i]), DECIMALS)) for i in order]
    return [*first, *((piece, score) for piece, score in spelled if piece not in reserved), (str(ROLES.mask), 0.0)]


Piece = tuple[int, ...]
"""A piece as the numbers of its characters in the alphabet."""


def _alphabet(counts: Mapping[str, int]) -> list[str]:
    """Return the most frequent characters, up to COVERAGE of the text, sorted."""
    frequency: dict[str, int] = {}
    for word, count in counts.items():
        for character in word:
            frequency[character] = frequency.get(character, 0) + count
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    sums = np.cumsum([frequency[character] for character in ranked])
    return sorted(ranked[: int(np.searchsorted(sums, COVERAGE * sums[-1])) + 1])


def _most_frequent(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the most frequent words, most frequent first, with MOST_CHARACTERS at most. Warns of words left out."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    taken = ranked[: int(np.searchsorted(np.cumsum([len(word) for word in ranked]), MOST_CHARACTERS, "right"))]
    if rest := sum(counts[word] for word in ranked[len(taken) :]):
        console.warn(
            f"the pieces are trained on the {len(taken):,} most frequent of {len(ranked):,} different words (at most "
            f"{MOST_CHARACTERS:,} characters); the others are {console.percent(rest / sum(counts.values()))} of the text"
        )
    return {word: counts[word] for word in taken}


@dataclass(frozen=True, eq=False)
class _Words:
    """Words, end to end.

    Attributes:
        characters: int64 [N], numbers of their characters in the alphabet.
        place: int64 [N], place of each character in its word.
        rest: int64 [N], characters from each one to the end of its word.
        counts: float64 [N], occurrences of the word of each character.
        alphabet: Size of the alphabet.
    """

    characters: np.ndarray
    place: np.ndarray
    rest: np.ndarray
    counts: np.ndarray
    alphabet: int

    @classmethod
    def of(cls, counts: Mapping[str, int], alphabet: list[str]) -> _Words:
        """Split the words at characters without an entry, and long ones into parts, and lay them end to end."""
        number = {character: i for i, character in enumerate(alphabet)}
        rows: list[list[int]] = []
        often: list[int] = []
        for word, count in counts.items():
            row: list[int] = []
            for entry in [*(number.get(character, -1) for character in word), -1]:
                if row and (entry < 0 or len(row) == LONGEST_WORD):
                    rows.append(row)
                    often.append(count)
                    row = []
                if entry >= 0:
                    row.append(entry)
        return cls.from_rows(rows, np.array(often, np.float64), len(alphabet))

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], counts: np.ndarray, alphabet: int) -> _Words:
        lengths = np.array([len(row) for row in rows], np.int64)
        characters = np.fromiter((c for row in rows for c in row), np.int64, int(lengths.sum()))
        place = np.arange(len(characters)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return cls(characters, place, np.repeat(lengths, lengths) - place, np.repeat(counts, lengths), alphabet)

    def lattice(self, pieces: Sequence[Piece]) -> _Lattice:
        """Find all places of pieces in the words."""
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        spelled = np.full((len(pieces), int(lengths.max())), -1, np.int64)
        spelled[np.arange(spelled.shape[1]) < lengths[:, None]] = np.fromiter(
            (c for piece in pieces for c in piece), np.int64, int(lengths.sum())
        )
        node, at = np.zeros(len(pieces), np.int64), np.zeros(len(self.characters), np.int64)
        longer, starts = np.arange(len(pieces)), np.arange(len(self.characters))
        matches: list[tuple[np.ndarray, np.ndarray, int]] = []
        for depth in range(spelled.shape[1]):  # one step down a trie of the pieces, for all starts at once
            longer = longer[lengths[longer] > depth]
            keys, node[longer] = np.unique(node[longer] * self.alphabet + spelled[longer, depth], return_inverse=True)
            starts = starts[self.rest[starts] > depth]
            wanted = at[starts] * self.alphabet + self.characters[starts + depth]
            reached = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            match = keys[reached] == wanted
            starts = starts[match]
            at[starts] = reached[match]
            piece_at = np.full(len(keys), -1, np.int64)
            ends = longer[lengths[longer] == depth + 1]
            piece_at[node[ends]] = ends
            matched = piece_at[at[starts]]
            matches.append((starts[matched >= 0], matched[matched >= 0], depth + 1))
        return _Lattice(self, *_joined(matches), len(pieces))


@dataclass(frozen=True, eq=False)
class _Lattice:
    """All places of pieces in words: piece `piece[e]` has the characters `start[e]` to `start[e] + length[e]` - 1."""

    words: _Words
    start: np.ndarray
    piece: np.ndarray
    length: np.ndarray
    pieces: int

    def expected(self, scores: np.ndarray) -> np.ndarray:
        """Return the expected occurrences of each piece, over all segmentations of all words, float64 [pieces]."""
        score = scores[self.piece]
        before = self._pass(self.start + self.length - 1, self.start, self.words.place, score, np.logaddexp)
        after = self._pass(self.start, self.start + self.length - 1, self.words.rest - 1, score, np.logaddexp)
        whole = before[np.arange(len(before)) + self.words.rest - 1]
        left = np.where(self.words.place[self.start] > 0, before[self.start - 1], 0.0)
        last = self.start + self.length - 1
        right = np.where(self.words.rest[last] > 1, after[np.minimum(last + 1, len(after) - 1)], 0.0)
        weight = np.exp(left + score + right - whole[self.start]) * self.words.counts[self.start]
        return np.round(np.bincount(self.piece, weight, self.pieces), 3)

    def best(self, scores: np.ndarray) -> np.ndarray:
        """Return the log probability of the best segmentation up to and with each character, float64 [N]."""
        return self._pass(self.start + self.length - 1, self.start, self.words.place, scores[self.piece], np.maximum)

    def _pass(
        self, ends: np.ndarray, starts: np.ndarray, order: np.ndarray, score: np.ndarray, add: np.ufunc
    ) -> np.ndarray:
        """Sum, or take the best of, the paths from one end of each word to each character, in all words at once."""
        by_step = np.lexsort((ends, order[ends]))
        ends, starts, score = ends[by_step], starts[by_step], score[by_step]
        step = 1 if order is self.words.place else -1  # the neighbor that comes before on the path
        values = np.full(len(order), -np.inf)
        steps = order[ends]
        bounds = np.searchsorted(steps, np.arange(int(steps.max(initial=0)) + 2))
        for first, end in pairwise(bounds.tolist()):
            if first == end:
                continue
            mine, theirs = ends[first:end], starts[first:end]
            begins = order[theirs] == 0
            path = score[first:end] + np.where(begins, 0.0, values[np.where(begins, 0, theirs - step)])
            groups = np.flatnonzero(np.append(True, mine[1:] != mine[:-1]))
            values[mine[groups]] = add.reduceat(path, groups)
        return values


def _seeds(words: _Words, min_frequency: int, most: int, alphabet: int) -> list[tuple[Piece, float]]:
    """Return all characters, and the substrings with the most characters of text, with their occurrences."""
    starts, ids = np.arange(len(words.characters)), np.zeros(len(words.characters), np.int64)
    parts: list[tuple[np.ndarray, np.ndarray, int]] = []
    for depth in range(LONGEST_PIECE):
        starts = starts[words.rest[starts] > depth]
        if not len(starts):
            break
        keys = ids[starts] * alphabet + words.characters[starts + depth]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        counts = np.bincount(inverse, words.counts[starts])
        frequent = counts >= (min_frequency if depth else 1)
        parts.append((starts[first[frequent]], counts[frequent], depth + 1))
        ids[starts] = inverse
        starts = starts[frequent[inverse]]
    place, count, length = _joined(parts)
    ranked = np.lexsort((place, -count * length))
    chosen = [*np.flatnonzero(length == 1).tolist(), *(i for i in ranked.tolist() if length[i] > 1)][:most]
    return [(tuple(words.characters[place[i] : place[i] + length[i]].tolist()), float(count[i])) for i in chosen]


def _joined(parts: list[tuple[np.ndarray, np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Concatenate arrays of substrings of the same length; the third array has the lengths."""
    places, values, lengths = zip(*parts, strict=True)
    return np.concatenate(places), np.concatenate(values), np.repeat(lengths, [len(place) for place in places])


def _scores(expected: np.ndarray) -> np.ndarray:
    """Return log probabilities. As in SentencePiece, ψ replaces the logarithm, so rare pieces get less (Beal 2003)."""
    count = np.maximum(expected, 0.1)
    return np.round(_digamma(count) - _digamma(count.sum(keepdims=True)), DECIMALS)


def _digamma(x: np.ndarray) -> np.ndarray:
    """Return ψ(x), by its recurrence and its series for large arguments (Abramowitz and Stegun 1964, 6.3.5 and 6.3.18)."""
    shifted = x + 6
    series = np.log(shifted) - 1 / (2 * shifted) - 1 / (12 * shifted**2) + 1 / (120 * shifted**4)
    return series - sum(1 / (x + i) for i in range(6))


def _most_missed(pieces: list[Piece], scores: np.ndarray, expected: np.ndarray, size: int) -> np.ndarray:
    """Return the numbers of the pieces to keep: all characters, and those whose loss costs the most likelihood."""
    longer = [i for i, piece in enumerate(pieces) if len(piece) > 1]
    rows = [pieces[i] for i in longer]
    words = _Words.from_rows(rows, np.ones(len(rows)), 1 + max(max(piece) for piece in pieces))
    lattice = words.lattice(pieces)
    inside = ~((words.place[lattice.start] == 0) & (lattice.length == words.rest[lattice.start]))
    parts = _Lattice(words, lattice.start[inside], lattice.piece[inside], lattice.length[inside], lattice.pieces)
    without = parts.best(scores)[np.flatnonzero(words.rest == 1)]
    loss = np.round(expected[longer] * (scores[longer] - without), 3)
    ranked = sorted(range(len(longer)), key=lambda i: (-loss[i], pieces[longer[i]]))
    single = [i for i, piece in enumerate(pieces) if len(piece) == 1]
    return np.array(sorted([*single, *(longer[i] for i in ranked[: size - len(single)])]))
