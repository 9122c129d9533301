"""Which texts are known to be right for a query: in training none of them is a negative, and in evaluation none is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bertie.base.contracts import PairTargets, Sequence


class Known(NamedTuple):
    """What the data knows of a text. Equal inputs are one text."""

    number: int
    """Number of the text."""
    positives: np.ndarray
    """int64: the numbers of all positives of a query in the data, and its own one; empty for other texts."""
    score: float = 0.0
    """Score of a text for its own query, if there is one."""


def with_relation(sequences: list[Sequence]) -> list[Sequence]:
    """Return the sequences with a `Known` as target, in place of their scores."""
    numbers = dict[bytes, int]()
    number = [numbers.setdefault(sequence.input_ids.tobytes(), len(numbers)) for sequence in sequences]
    known = dict[int, set[int]]()
    query = -1
    for sequence, text in zip(sequences, number, strict=True):
        if sequence.part == 0:
            known.setdefault(query := text, {text})
        elif sequence.part == 1:
            known[query].add(text)
    arrays = {query: np.array(sorted(texts), np.int64) for query, texts in known.items()}
    empty = np.zeros(0, np.int64)
    return [
        replace(sequence, target=Known(text, empty if sequence.part else arrays[text], sequence.target or 0.0))
        for sequence, text in zip(sequences, number, strict=True)
    ]


def compared(
    sequences: list[Sequence], index: np.ndarray, label: np.ndarray, contrast: bool, back: bool
) -> PairTargets:
    """Return the targets of texts: each query (part 0), then its positives (part 1) and negatives.

    Args:
        sequences: The texts.
        index: As of `PairTargets`, with `label`.
        label: The text of each token.
        contrast: Whether the loss contrasts each query with all candidates.
        back: Whether it also contrasts each positive with all queries.
    """
    part = np.array([min(sequence.part, 2) for sequence in sequences], np.int64)
    queries, second = np.flatnonzero(part == 0), np.flatnonzero(part)
    own = np.flatnonzero(part[second] == 1)
    rows = np.arange(len(own))
    query_C = queries[np.searchsorted(queries, second) - 1]
    first = query_C[own]
    # A negative belongs to the first positive of its query.
    group = np.where(part[second] == 1, np.cumsum(part[second] == 1) - 1, np.searchsorted(first, query_C))
    weight = (1 / np.bincount(first, minlength=1)[first]).astype(np.float32)  # a query's positives share its weight
    score = np.array([sequences[text].target.score for text in second], np.float32)
    masked = masked_back = np.zeros((0, 0), bool)
    if contrast:
        queries_B = [sequences[i].target for i in first]
        number_C = np.array([sequences[i].target.number for i in second], np.int64)
        masked = _masked(number_C, [query.positives for query in queries_B], own)
        if back:
            number_B = np.array([query.number for query in queries_B], np.int64)
            right = [[each.number for each in queries_B if number in each.positives] for number in number_C[own]]
            masked_back = _masked(number_B, right, rows)
    targets = (index, label, weight, rows, first, second, own, group, score, masked, masked_back)
    return PairTargets(*targets, len(sequences))


def _masked(number_C: np.ndarray, right: Iterable[Any], own_B: np.ndarray) -> np.ndarray:
    """Return which candidates a text is not contrasted with, bool [B, C]: all that are right for it but its own one, and
    candidates that are there already.

    Args:
        number_C: The candidates; the same number is the same text.
        right: For each text the numbers that are right for it.
        own_B: The place of its own one among the candidates.
    """
    again = np.ones(len(number_C), bool)
    again[np.unique(number_C, return_index=True)[1]] = False
    masked = np.tile(again, (len(own_B), 1))
    for line, numbers in zip(masked, right, strict=True):
        line |= np.isin(number_C, numbers)
    masked[np.arange(len(own_B)), own_B] = False
    return masked


def numbers_of(texts: list[Any]) -> np.ndarray:
    """Return for each text the index of the first one that equals it, int64 [N]."""
    numbers = dict[Any, int]()
    return np.array([numbers.setdefault(text, index) for index, text in enumerate(texts)], np.int64)


def partner_ranks(
    first_ND: np.ndarray, second_ND: np.ndarray, first_N: np.ndarray, second_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rank second texts by their cosine with each first text; the own one ranks last among those that tie with it.

    Args:
        first_ND: Vectors of the first texts.
        second_ND: Vectors of the second texts.
        first_N: For each first text the index of the first one that equals it.
        second_N: The same for the second texts. Those that `_masked` names are left out.

    Returns:
        For each row i, int64 [N] each: the rank of row i of `second_ND`, from 1, and the index of the row that ranks first.
    """
    ranks, nearest = [], []
    for start in range(0, len(first_ND), 1024):
        cosines = first_ND[start : start + 1024] @ second_ND.T
        number = np.arange(start, start + len(cosines))
        right = [second_N[first_N == text] for text in first_N[number]]  # as right as the own one
        cosines[_masked(second_N, right, number)] = -np.inf
        own_cosine = cosines[np.arange(len(cosines)), number][:, None]
        ranks.append((cosines >= own_cosine).sum(1))
        cosines[np.arange(len(cosines)), number] = np.where(ranks[-1] == 1, np.inf, -np.inf)
        nearest.append(cosines.argmax(1))
    return np.concatenate(ranks), np.concatenate(nearest)
