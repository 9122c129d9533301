"""Measures of a ranking: nDCG with linear gains (Järvelin & Kekäläinen 2002), recall, MAP, MRR, as trec_eval defines them.

N  documents    K  documents of a ranking
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def names(cutoffs: tuple[int, ...]) -> list[str]:
    """Return the names of the measures, in the order of `measure`."""
    return [*(f"ndcg@{k}" for k in cutoffs), *(f"recall@{k}" for k in cutoffs), "map", "mrr"]


def order(scores_N: np.ndarray, ties_N: Int[np.ndarray, " N"], depth: int) -> Int[np.ndarray, " K"]:
    """Return the documents with the highest scores, best first.

    Args:
        scores_N: The scores. They are compared as float32, as trec_eval does. -inf: the document is not found.
        ties_N: Numbers that order documents with equal scores, the smallest first.
        depth: Most documents.
    """
    scores = scores_N.astype(np.float32)
    found = np.flatnonzero(scores > -np.inf)
    if len(found) > depth:
        last = np.partition(scores[found], len(found) - depth)[len(found) - depth]
        found = found[scores[found] >= last]  # with all that tie with the last one
    return found[np.lexsort((ties_N[found], -scores[found]))][:depth]


def measure(
    grades_K: Int[np.ndarray, " K"], positives: Int[np.ndarray, " P"], cutoffs: tuple[int, ...]
) -> Float[np.ndarray, " M"]:
    """Return the measures of one ranking, in the order of `names`.

    Args:
        grades_K: The grades of the documents, best first; those without one, and those below 0, count as 0.
        positives: All grades above 0 of the query. None: all measures are 0.
        cutoffs: The numbers of first documents that nDCG and recall count.
    """
    gains, hits = np.maximum(grades_K, 0), grades_K > 0
    if not len(positives):
        return np.zeros(2 * len(cutoffs) + 2)
    at = np.flatnonzero(hits) + 1
    ndcg = [_dcg(gains[:k]) / _dcg(np.sort(positives)[::-1][:k]) for k in cutoffs]
    recall = [hits[:k].sum() / len(positives) for k in cutoffs]
    precisions = np.arange(1, len(at) + 1) / at
    return np.array([*ndcg, *recall, precisions.sum() / len(positives), 1 / at[0] if len(at) else 0.0])


def _dcg(gains: np.ndarray) -> float:
    return float((gains / np.log2(np.arange(len(gains)) + 2)).sum())
