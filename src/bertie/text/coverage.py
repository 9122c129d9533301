"""How well a vocabulary covers a text: pieces per word, whole words, unknown words, entries in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertie import console
from bertie.text.tokenizer import MAX_WORD_CHARACTERS, Tokenizer

MOST_UNKNOWN = 0.03  # with BERT's vocabularies, texts of their languages have up to 2 % (docs/decisions/003)
BATCH_WORDS = 100_000  # words to encode at a time


@dataclass(frozen=True)
class Coverage:
    """Coverage of a text by a vocabulary. A word counts as often as it occurs."""

    words: int  # running words
    pieces_per_word: float
    whole: float  # share of words that are a single entry other than [UNK]
    unknown: float  # share of words that are [UNK]
    unknown_characters: float  # share of characters that these words have
    used: int  # vocabulary entries that occur in the text


def warn_of_unknown(place: str, words: float, characters: float | None = None) -> None:
    """Print a warning if a vocabulary does not fit a text.

    Args:
        place: The vocabulary or the text, as the message names it.
        words: Share of the words that are [UNK], 0 to 1.
        characters: Share of the characters that these words have; None: unknown.
    """
    if max(words, characters or 0.0) >= MOST_UNKNOWN:
        also = "" if characters is None else f" ({characters:.1%} of the characters)"
        console.warn(
            f"{place}: {words:.1%} of the words{also} are [UNK], because a character has no entry or a word has more than "
            f"{MAX_WORD_CHARACTERS} characters: train a vocabulary on such text (--algorithm bpe has no [UNK])"
        )


def measure_coverage(tokenizer: Tokenizer, counts: Mapping[str, int]) -> Coverage:
    """Measure how well a vocabulary covers a text.

    Args:
        tokenizer: The tokenizer to measure.
        counts: word -> occurrences, counted with the tokenizer's normalization (`word_counts.count_words`).
    """
    pieces, unknown, used = count_pieces(tokenizer, list(counts))
    occurrences = np.fromiter(counts.values(), np.int64, len(counts))
    characters = occurrences * np.fromiter(map(len, counts), np.int64, len(counts))
    total = max(int(occurrences.sum()), 1)
    return Coverage(
        int(occurrences.sum()),
        float((pieces * occurrences).sum() / total),
        float(occurrences[(pieces == 1) & ~unknown].sum() / total),
        float(occurrences[unknown].sum() / total),
        float(characters[unknown].sum() / max(characters.sum(), 1)),
        int(used.sum()),
    )


def count_pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokenize words and count their pieces.

    Returns:
        Pieces of each word, int64 [words]; whether each word is [UNK], bool [words]; whether each entry occurs, bool
        [V].
    """
    pieces = np.zeros(len(words), np.int64)
    unknown = np.zeros(len(words), bool)
    used = np.zeros(tokenizer.size, bool)
    unk_id = tokenizer.unk_id if tokenizer.special.unk else None
    for start in range(0, len(words), BATCH_WORDS):
        for number, ids in enumerate(tokenizer.encode(words[start : start + BATCH_WORDS]), start):
            pieces[number] = len(ids)
            unknown[number] = unk_id in ids
            used[ids] = True
    return pieces, unknown, used


def longest_entries(tokenizer: Tokenizer, limit: int = 10) -> list[str]:
    """Return the entries with the most characters, without special tokens and [unused…] entries."""
    special, mark = set(tokenizer.special.names().values()), tokenizer.backend.word_mark
    entries = [entry for entry in tokenizer.vocabulary if entry not in special and not entry.startswith("[unused")]
    return sorted(entries, key=lambda entry: (-len(entry.removeprefix(mark)), entry))[:limit]


def compare_tokenizers(
    first: Tokenizer, second: Tokenizer, counts: Mapping[str, int], limit: int = 10
) -> list[tuple[str, int, int]]:
    """List the words that two vocabularies with the same normalization split into different numbers of pieces.

    Args:
        first: A tokenizer.
        second: The tokenizer to compare it with.
        counts: word -> occurrences in a text.
        limit: Number of words to return.

    Returns:
        (word, pieces by `first`, pieces by `second`), ordered by the difference times the occurrences, largest first.
    """
    words = list(counts)
    pieces_first, pieces_second = count_pieces(first, words)[0], count_pieces(second, words)[0]
    cost = np.abs(pieces_first - pieces_second) * np.fromiter(counts.values(), np.int64, len(counts))
    order = np.argsort(-cost, kind="stable")[:limit].tolist()
    return [(words[i], int(pieces_first[i]), int(pieces_second[i])) for i in order if cost[i]]
