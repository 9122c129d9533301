"""Word vectors by counting: which tokens stand near each other, and nothing learned.

Positive pointwise mutual information of neighbours, smoothed contexts, the square root of the singular values: the
choices that Levy, Goldberg and Dagan (2015, Transactions of the ACL 3) found to do as well as trained vectors.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from bertie.text.shards import Corpus

WINDOW = 4  # tokens to either side; one at distance d counts 1 / d
SMOOTHING = 0.75  # power of the contexts' frequencies: rare contexts tell less than they seem to
MAX_TOKENS = 50_000_000  # tokens to read
MIN_COUNT = 1.0  # neighbours that count no more than this met by chance


def cooccurrence_vectors(corpus: Corpus, vocabulary_size: int, width: int) -> np.ndarray:
    """float32 [vocabulary_size, width], 0 for tokens without neighbours. The same for the same corpus and machine.

    Reads the first shards, up to about MOST tokens. Memory: some 30 bytes for each pair of tokens that occurs.
    """
    from sklearn.utils.extmath import randomized_svd

    information = _information(_neighbours(corpus, vocabulary_size))
    known = min(width, vocabulary_size)
    left, values, _ = randomized_svd(information, known, random_state=0)
    left[np.diff(information.indptr) == 0] = 0  # as it would be but for rounding
    return np.pad(left * np.sqrt(values), ((0, 0), (0, width - known))).astype(np.float32)


def _neighbours(corpus: Corpus, size: int) -> sparse.csr_matrix:
    """How often two tokens stand within WINDOW of each other in one document, [size, size], symmetric."""
    counts = sparse.csr_matrix((size, size), dtype=np.float32)
    for shard, tokens in enumerate(corpus.tokens):
        start, stop = corpus.shard_starts[shard : shard + 2]
        if start >= MAX_TOKENS:
            break
        document = np.searchsorted(corpus.document_starts, np.arange(start, stop), side="right")
        for distance in range(1, WINDOW + 1):
            together = document[distance:] == document[:-distance]
            pairs = tokens[:-distance][together], tokens[distance:][together]
            weight = np.full(len(pairs[0]), 1 / distance, np.float32)
            counts += sparse.csr_matrix((weight, pairs), shape=(size, size))
    return (counts + counts.T).tocsr()


def _information(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """log p(context | token) / p(context), where it is positive."""
    counts.data[counts.data <= MIN_COUNT] = 0
    counts.eliminate_zeros()
    totals = np.asarray(counts.sum(axis=1), dtype=np.float64).ravel()
    contexts = totals**SMOOTHING / max((totals**SMOOTHING).sum(), 1.0)
    rows = np.repeat(np.arange(len(totals)), np.diff(counts.indptr))
    information = np.log(counts.data / (totals[rows] * contexts[counts.indices]))
    counts.data = np.maximum(information, 0).astype(np.float32)
    counts.eliminate_zeros()
    return counts
