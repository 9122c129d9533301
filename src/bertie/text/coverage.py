"""How well a vocabulary fits a text: what a user wants to know before weeks of training on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertie.text.tokenizer import CONTINUATION, SPECIAL_TOKENS, Tokenizer

BATCH_WORDS = 100_000  # words encoded at a time


@dataclass(frozen=True)
class Coverage:
    """Of a text's words, each as often as it occurs."""

    words: int
    pieces_per_word: float
    whole: float  # share of words that are one entry, [UNK] not counted
    unknown: float  # share of words that are [UNK]
    used: int  # entries that occur


def measure_coverage(tokenizer: Tokenizer, counts: Mapping[str, int]) -> Coverage:
    """counts: word → how often it occurs, by the tokenizer's rules (`words.count`)."""
    pieces, unknown, used = count_pieces(tokenizer, list(counts))
    times = np.fromiter(counts.values(), np.int64, len(counts))
    total = max(int(times.sum()), 1)
    return Coverage(
        int(times.sum()),
        float((pieces * times).sum() / total),
        float(times[(pieces == 1) & ~unknown].sum() / total),
        float(times[unknown].sum() / total),
        int(used.sum()),
    )


def count_pieces(tokenizer: Tokenizer, words: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How many pieces each word is cut into, int64 [words]; which are [UNK], bool [words]; which entries occur, bool [V]."""
    pieces = np.zeros(len(words), np.int64)
    unknown = np.zeros(len(words), bool)
    used = np.zeros(tokenizer.size, bool)
    for start in range(0, len(words), BATCH_WORDS):
        for number, ids in enumerate(tokenizer.encode(words[start : start + BATCH_WORDS]), start):
            pieces[number] = len(ids)
            unknown[number] = tokenizer.unk_id in ids
            used[ids] = True
    return pieces, unknown, used


def longest_entries(tokenizer: Tokenizer, most: int = 10) -> list[str]:
    """The entries of most characters, special and reserved ones left out."""
    entries = [word for word in tokenizer.words if word not in SPECIAL_TOKENS and not word.startswith("[unused")]
    return sorted(entries, key=lambda word: (-len(word.removeprefix(CONTINUATION)), word))[:most]


def compare_tokenizers(
    first: Tokenizer, second: Tokenizer, counts: Mapping[str, int], most: int = 10
) -> list[tuple[str, int, int]]:
    """Words that one of two vocabularies with the same rules cuts into more pieces, by all the pieces that it costs."""
    words = list(counts)
    a, b = count_pieces(first, words)[0], count_pieces(second, words)[0]
    cost = np.abs(a - b) * np.fromiter(counts.values(), np.int64, len(counts))
    order = np.argsort(-cost, kind="stable")[:most].tolist()
    return [(words[number], int(a[number]), int(b[number])) for number in order if cost[number]]
