"""Token vectors from co-occurrence counts: positive PMI, then SVD. No training.

Follows Levy, Goldberg and Dagan (2015, Transactions of the ACL 3): positive pointwise mutual information (PMI),
smoothed context frequencies, left singular vectors times the square root of the singular values. They found that these
choices match trained word vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from bertie.text.shards import Corpus

WINDOW = 4  # tokens on either side; a neighbor at distance d counts 1 / d
SMOOTHING = 0.75  # exponent of the context frequencies: plain PMI overrates rare contexts
MAX_TOKENS = 50_000_000  # tokens to read
MIN_COUNT = 1.0  # pairs with a count of at most this are dropped as chance
POWER_ITERATIONS = 2  # of the SVD. More of them change the last singular values, and models learn no faster (docs/log)


def cooccurrence_vectors(corpus: Corpus, vocabulary_size: int, width: int) -> np.ndarray:
    """Compute one vector per vocabulary entry from the token co-occurrences of a corpus.

    Reads the first shards, up to about MAX_TOKENS tokens. Deterministic for a given corpus and machine. Memory: about
    30 bytes for each distinct pair of tokens that co-occurs.

    Returns:
        float32 [vocabulary_size, width]. Rows of tokens without co-occurrences are 0. Where `width` exceeds
        `vocabulary_size`, the extra columns are 0.
    """
    from sklearn.utils.extmath import randomized_svd

    pmi = _positive_pmi(cooccurrence_counts(corpus, vocabulary_size, WINDOW))
    rank = min(width, vocabulary_size)
    iterations: Any = POWER_ITERATIONS  # annotated as str, from the default 'auto'
    left, singular_values, _ = randomized_svd(pmi, rank, n_iter=iterations, random_state=0)
    left[np.diff(pmi.indptr) == 0] = 0  # empty rows: exactly 0, without rounding errors
    return np.pad(left * np.sqrt(singular_values), ((0, 0), (0, width - rank))).astype(np.float32)


def cooccurrence_counts(corpus: Corpus, size: int, window: int) -> sparse.csr_matrix:
    """Sum 1 / distance over the token pairs within `window` tokens in one document: float32 [size, size], symmetric.

    Reads the first shards, up to about MAX_TOKENS tokens.
    """
    counts = sparse.csr_matrix((size, size), dtype=np.float32)
    for shard, tokens in enumerate(corpus.tokens):
        start, stop = corpus.shard_starts[shard : shard + 2]
        if start >= MAX_TOKENS:
            break
        document = np.searchsorted(corpus.document_starts, np.arange(start, stop), side="right")
        for distance in range(1, window + 1):
            same_document = document[distance:] == document[:-distance]
            pairs = tokens[:-distance][same_document], tokens[distance:][same_document]
            weight = np.full(len(pairs[0]), 1 / distance, np.float32)
            counts += sparse.csr_matrix((weight, pairs), shape=(size, size))
    return (counts + counts.T).tocsr()


def _positive_pmi(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Replace counts by max(0, log(p(context | token) / p(context))), in place."""
    counts.data[counts.data <= MIN_COUNT] = 0
    counts.eliminate_zeros()
    totals = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    contexts = totals**SMOOTHING / max((totals**SMOOTHING).sum(), 1.0)
    rows = np.repeat(np.arange(len(totals)), np.diff(counts.indptr))
    pmi = np.log(counts.data / (totals[rows] * contexts[counts.indices]))
    counts.data = np.maximum(pmi, 0).astype(np.float32)
    counts.eliminate_zeros()
    return counts
