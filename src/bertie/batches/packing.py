"""Assignment of sequences to rows of packed tokens (bin packing)."""

from __future__ import annotations

from collections import defaultdict

import numpy as np


def row_count(lengths: np.ndarray, row_tokens: int) -> int:
    """Return the number of rows into which `pack` packs sequences of these lengths."""
    return int(lengths.sum()) // row_tokens


def pack(lengths: np.ndarray, row_tokens: int) -> list[list[int]]:
    """Assign sequences to rows.

    A row takes sequences in the given order (the caller shuffles them) until the next one does not fit. The longest
    sequences that fit, from anywhere in the list, then fill the gap. So a row keeps the mixture of the corpus, and only its
    last sequences are selected by length. The sequences that remain after the last row are not used: less than a row, plus
    the tokens that the gaps displaced.

    Args:
        lengths: int [n]: length of each sequence in tokens.
        row_tokens: Capacity of a row in tokens.

    Returns:
        Indices of the sequences of each row; row_count(lengths, row_tokens) rows.
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
            elif (longest_fit := _longest_fit(by_length, taken, min(gap, longest))) is not None:
                index = longest_fit
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
