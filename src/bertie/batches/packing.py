"""Which sequences share a row of T tokens."""

from __future__ import annotations

from collections import defaultdict

import numpy as np


def row_count(lengths: np.ndarray, row_tokens: int) -> int:
    """How many rows `pack` makes of these sequences."""
    return int(lengths.sum()) // row_tokens


def pack(lengths: np.ndarray, row_tokens: int) -> list[list[int]]:
    """Indices of the sequences of each row; row_count(lengths, row_tokens) rows.

    Sequences are taken in the order given (the caller shuffled them) until the next one does not fit; the gap is then
    closed with the longest sequences that fit, from anywhere in the list. So rows keep the mixture of the corpus and
    only their last places are chosen by length. What is left after the last row, less than a row and what the gaps
    cost, is not used.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for index in range(len(lengths) - 1, -1, -1):
        by_length[int(lengths[index])].append(index)
    taken = np.zeros(len(lengths), dtype=bool)
    longest = max(by_length, default=0)
    rows, cursor = [], 0
    for _ in range(row_count(lengths, row_tokens)):
        row: list[int] = []
        gap = row_tokens
        while gap > 0:
            while cursor < len(lengths) and taken[cursor]:
                cursor += 1
            if cursor < len(lengths) and lengths[cursor] <= gap:
                index = cursor
            elif (found := _longest_fit(by_length, taken, min(gap, longest))) is not None:
                index = found
            else:
                break
            taken[index] = True
            row.append(index)
            gap -= int(lengths[index])
        rows.append(row)
    return rows


def _longest_fit(by_length: dict[int, list[int]], taken: np.ndarray, gap: int) -> int | None:
    for length in range(gap, 0, -1):
        candidates = by_length.get(length, [])
        while candidates and taken[candidates[-1]]:
            candidates.pop()
        if candidates:
            return candidates[-1]
    return None
