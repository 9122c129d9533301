"""Beam search for the pieces of words at masks.

P  positions to fill
V  entries of the vocabulary
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from bertie.predict.token_model import TokenModel
from bertie.tokenizers.tokenizer import ByteLevel, Tokenizer
from bertie.tokenizers.wordpiece_backend import CONTINUATION

Order = Literal["left-to-right", "confidence"]


class Slot(NamedTuple):
    """Positions that one word fills, from `start` to `stop`."""

    start: int
    stop: int
    at_start: bool
    """Whether the word begins the text, or the space before it is a token of its own."""


class State(NamedTuple):
    """A partial filling."""

    ids: np.ndarray
    """int32 [n]: the sequence."""
    open: tuple[int, ...]
    """Positions that are still to be filled, ascending."""
    score: float
    """Sum of the log probabilities of the pieces that are filled in."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Which entries of a vocabulary may stand where in a word, and which words they spell."""

    tokenizer: Tokenizer
    ordinary: np.ndarray
    """bool [V]: entries that are no special tokens."""
    first: np.ndarray
    """bool [V]: entries that may begin a word inside a text."""
    first_of_text: np.ndarray
    """bool [V]: entries that may begin the first word of a text. In byte-level BPE it has no space before it."""
    later: np.ndarray
    """bool [V]: entries that may continue a word."""

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, tokenizer: Tokenizer) -> Pieces:
        """Return the pieces of a vocabulary."""
        ordinary = np.ones(tokenizer.size, bool)
        ordinary[tokenizer.special_ids] = False
        if tokenizer.backend.end_mark:  # `word` looks at the last
            return cls(tokenizer, ordinary, ordinary, ordinary, ordinary)
        starts = tokenizer.word_starts_table & ordinary
        inner = ordinary & ~tokenizer.word_starts_table
        normalization = tokenizer.normalization
        if not isinstance(normalization, ByteLevel):
            return cls(tokenizer, ordinary, starts, starts, inner)
        spaced = np.array([entry.startswith(tokenizer.backend.word_mark) for entry in tokenizer.vocabulary]) & ordinary
        return cls(tokenizer, ordinary, spaced, spaced if normalization.add_prefix_space else inner, inner)

    def allowed(self, slots: list[Slot], whole_words: bool) -> dict[int, np.ndarray]:
        """Return which entries may stand at each position of the slots, bool [V]."""
        table: dict[int, np.ndarray] = {}
        for slot in slots:
            begins = self.first_of_text if slot.at_start else self.first
            for position in range(slot.start, slot.stop):
                piece = begins if position == slot.start else self.later
                table[position] = piece if whole_words else self.ordinary
        return table

    def spell(self, word: str, at_start: bool) -> list[int]:
        """Return the ids of a word, or of several, as the tokenizer splits them in a text."""
        if self.tokenizer.algorithm == "wordpiece" and word.startswith(CONTINUATION) and len(word) > len(CONTINUATION):
            return self.tokenizer.split_entry(word)
        spaced = self.tokenizer.algorithm == "bpe" and not at_start and word and not word.startswith(" ")
        return self.tokenizer.encode([f" {word}" if spaced else word])[0].tolist()

    def word(self, ids: list[int]) -> str | None:
        """Return the word that some entries spell. None: it is none, or the tokenizer spells it with other entries."""
        spelled = b"".join(map(self.tokenizer.spelling, self.tokenizer.tokens(ids)))
        try:
            word = spelled.decode()
        except UnicodeDecodeError:  # half of a character
            return None
        [encoding] = self.tokenizer.encode_with_offsets([word])
        is_one_word = encoding.ids == ids and len(set(encoding.word_ids)) == 1
        return word.strip() or None if is_one_word else None


def search(
    model: TokenModel, ids: np.ndarray, slots: list[Slot], pieces: Pieces, whole_words: bool, order: Order, width: int
) -> Iterator[State]:
    """Fill the masks of slots, one piece at a time.

    Args:
        model: The model.
        ids: int32 [n], the sequence. Masks outside of the slots remain.
        slots: The masks to fill.
        pieces: The pieces of the vocabulary.
        whole_words: Fill each slot with a word. Otherwise every position takes any entry but special tokens.
        order: Which piece is filled next. confidence: the one whose best entry is most probable.
        width: Number of partial fillings that are kept after each piece.

    Yields:
        Complete fillings, best first: at most width², because nothing is discarded after the last piece.
    """
    allowed = pieces.allowed(slots, whole_words)
    states = [State(ids, tuple(sorted(allowed)), 0.0)]
    while states[0].open:
        asked = [state.open[:1] if order == "left-to-right" else state.open for state in states]
        contexts = [(state.ids, np.array(positions)) for state, positions in zip(states, asked, strict=True)]
        grown: dict[bytes, State] = {}
        for state, positions, log_p_PV in zip(states, asked, model.log_distributions(contexts), strict=True):
            legal_PV = np.where(np.stack([allowed[position] for position in positions]), log_p_PV, -np.inf)
            row = int(legal_PV.max(1).argmax())
            for new in _grow(state, positions[row], legal_PV[row], width):
                key = new.ids.tobytes()
                if key not in grown or grown[key].score < new.score:  # the same filling, in another order
                    grown[key] = new
        ranked = sorted(grown.values(), key=lambda state: -state.score)
        if not ranked or not ranked[0].open:
            yield from ranked
            return
        states = ranked[:width]


def _grow(state: State, position: int, log_p_V: np.ndarray, width: int) -> Iterator[State]:
    """Yield the fillings with one more piece, for its most probable entries."""
    remaining = tuple(other for other in state.open if other != position)
    best = np.argpartition(-log_p_V, min(width, len(log_p_V)) - 1)[:width]
    for token in best[np.argsort(-log_p_V[best], kind="stable")].tolist():
        if np.isfinite(log_p_V[token]):
            ids = state.ids.copy()
            ids[position] = token
            yield State(ids, remaining, state.score + float(log_p_V[token]))
