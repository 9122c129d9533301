"""Token vectors from co-occurrence counts: positive PMI, then SVD. No training.

Follows Levy, Goldberg and Dagan (2015, Transactions of the ACL 3): positive pointwise mutual information (PMI),
smoothed context frequencies, left singular vectors times the square root of the singular values. They found that these
choices match trained word vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise, zip_longest
from typing import cast

import numpy as np
from scipy import linalg, sparse

from bertie.base import seeding
from bertie.corpus.token_corpus import Corpus

WINDOW = 4  # tokens on either side; a neighbor at distance d counts 1 / d
SMOOTHING = 0.75  # exponent of the context frequencies: plain PMI overrates rare contexts
MAX_TOKENS = 50_000_000  # tokens to read
MIN_COUNT = 1.0  # pairs with a count of at most this are dropped as chance
POWER_ITERATIONS = 2  # of the SVD. More of them change the last singular values, and models learn no faster (dev/log)
OVERSAMPLING = 10  # columns that the SVD computes beside those it returns
CHUNK = 1_000_000  # tokens whose pairs are counted at a time
BLOCK = 64  # columns of a product at a time: what it reads stays in the cache
TALL = 4  # rows of a block in the QR decomposition, as a multiple of the columns


@contextmanager
def vectors_ahead(
    corpus: Corpus, vocabulary_size: int, width: int, threads: int = 1
) -> Iterator[Callable[[], np.ndarray]]:
    """Compute `cooccurrence_vectors` beside the block, which gets a function that waits for them.

    The end of the block ends the computation, too.
    """
    with ThreadPoolExecutor(1) as caller:
        pool = ThreadPoolExecutor(threads)
        vectors = caller.submit(cooccurrence_vectors, pool, corpus, vocabulary_size, width)
        try:
            yield vectors.result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def cooccurrence_vectors(pool: Executor, corpus: Corpus, vocabulary_size: int, width: int) -> np.ndarray:
    """Compute one vector per vocabulary entry from the token co-occurrences of a corpus.

    Reads the first shards, up to about MAX_TOKENS tokens. Deterministic for a given corpus and machine. Memory: about
    30 bytes for each distinct pair of tokens that co-occurs, 12 bytes for each pair in each million of tokens, and 150 MB
    per thread.

    Returns:
        float32 [vocabulary_size, width]. Rows of tokens without co-occurrences are 0. Where `width` exceeds
        `vocabulary_size`, the extra columns are 0.
    """
    counts, ids = _counts_by_frequency(pool, corpus, vocabulary_size, WINDOW)
    pmi = _positive_pmi(counts)
    rank = min(width, vocabulary_size)
    left, singular_values = _randomized_svd(pool, pmi, rank)
    left[np.diff(pmi.indptr) == 0] = 0  # empty rows: exactly 0, without rounding errors
    vectors = np.zeros((vocabulary_size, width), np.float32)
    vectors[ids, :rank] = left * np.sqrt(singular_values)
    return vectors


def cooccurrence_counts(corpus: Corpus, size: int, window: int, threads: int = 1) -> sparse.csr_matrix:
    """Sum 1 / distance over the token pairs within `window` tokens in one document: float32 [size, size], symmetric.

    Reads the first shards, up to about MAX_TOKENS tokens.
    """
    with ThreadPoolExecutor(threads) as pool:
        counts, ids = _counts_by_frequency(pool, corpus, size, window)
    pairs = counts.tocoo()
    return sparse.csr_matrix((pairs.data, (ids[pairs.row], ids[pairs.col])), shape=counts.shape)


def _counts_by_frequency(
    pool: Executor, corpus: Corpus, size: int, window: int
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Count as `cooccurrence_counts`, with rows and columns in the order of falling frequency. Also returns their ids.

    In this order, what is read and written most is close together in memory and stays in the cache.
    """
    ids = np.argsort(-corpus.frequencies(size, MAX_TOKENS), kind="stable")
    ranks = np.empty(size, corpus.tokens[0].dtype)
    ranks[ids] = np.arange(size)
    starts = [
        first
        for start, stop in pairwise(corpus.shard_starts)
        for first in range(start, stop, CHUNK)
        if start < MAX_TOKENS
    ]
    # NumPy and SciPy compute without Python's lock.
    counts = list(pool.map(lambda first: _counts_of_chunk(corpus, ranks, first, window), starts))
    while len(counts) > 1:  # in pairs, so that each count is copied a few times only
        counts = list(pool.map(sum, zip_longest(counts[::2], counts[1::2], fillvalue=0)))
    total = sparse.csr_matrix(counts[0] if counts else (size, size), dtype=np.float32)
    total.eliminate_zeros()
    return (total + total.T).tocsr(), ids


def _counts_of_chunk(corpus: Corpus, ranks: np.ndarray, first: int, window: int) -> sparse.csr_matrix:
    """Sum 1 / distance over the pairs of up to CHUNK tokens from `first` on with the `window` tokens that follow each.

    Returns:
        [size, size]: rows are the following tokens, columns the preceding ones. May contain zeros.
    """
    ranked, following = _read_chunk(corpus, ranks, first, window)
    distances = np.arange(1, window + 1, dtype=np.int32)
    weight = np.where(distances <= np.arange(window + 1)[:, None], 1 / distances, 0).astype(np.float32)
    count = len(following)
    order = np.argsort(ranked[:count], kind="stable").astype(np.int32)
    row_starts = window * np.append(0, np.cumsum(np.bincount(ranked[:count], minlength=len(ranks))))
    values = weight[following[order]].ravel(), ranked[order[:, None] + distances].ravel(), row_starts
    pairs = sparse.csr_matrix(values, shape=(len(ranks), len(ranks))).tocsc()  # this sorts without comparisons
    pairs.sum_duplicates()
    return pairs.T


def _read_chunk(corpus: Corpus, ranks: np.ndarray, first: int, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Read up to CHUNK tokens of one shard from `first` on.

    Returns:
        The ranks of the tokens and of `window` others; how many tokens of its document follow each, at most `window`.
    """
    shard = int(np.searchsorted(corpus.shard_starts, first, side="right")) - 1
    start, end = corpus.shard_starts[shard : shard + 2]
    stop = min(first + CHUNK, end)
    read = ranks[corpus.tokens[shard][first - start : stop + window - start]]
    begin, finish = np.searchsorted(corpus.document_starts, (first, stop), side="right")
    ends = corpus.document_starts[begin : finish + 1]
    document_end = np.repeat(ends, np.diff(np.minimum(ends, stop), prepend=first))
    following = np.minimum(document_end - np.arange(first, stop) - 1, window)
    return np.pad(read, (0, stop + window - first - len(read))), following


def _randomized_svd(pool: Executor, matrix: sparse.csr_matrix, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute left singular vectors and singular values of a square matrix: [n, rank] and [rank], the largest first.

    Follows Halko, Martinsson and Tropp (2011, SIAM Review 53). The right singular vectors, which nobody needs, are not
    computed: the eigenvectors of a small matrix are enough.
    """
    size = len(matrix.indptr) - 1
    width, random = min(rank + OVERSAMPLING, size), seeding.generator(0, seeding.WEIGHTS)

    def product(by: sparse.csr_matrix | sparse.csc_matrix, dense: np.ndarray) -> np.ndarray:
        blocks = [np.ascontiguousarray(dense[:, i : i + BLOCK]) for i in range(0, width, BLOCK)]
        return np.concatenate(list(pool.map(lambda block: by @ block, blocks)), axis=1)

    sample = product(matrix, random.standard_normal((size, width), np.float32))
    for _ in range(POWER_ITERATIONS):
        sample = product(matrix, product(matrix.T, sample))
    basis = _orthonormal_basis(pool, sample)
    projected = product(matrix.T, basis).astype(np.float64)
    squares, vectors = np.linalg.eigh(projected.T @ projected)
    largest = np.arange(width)[::-1][:rank]
    return basis @ vectors[:, largest].astype(np.float32), np.sqrt(np.maximum(squares[largest], 0))


def _orthonormal_basis(pool: Executor, columns: np.ndarray) -> np.ndarray:
    """Return orthonormal columns that span the given ones, float32 [n, k] with k <= n: the Q of a QR decomposition.

    Blocks of rows are decomposed in parallel, and then their R, one above the other (TSQR; Demmel, Grigori, Hoemmen and
    Langou 2012, SIAM J. Sci. Comput. 34). NumPy's QR computes in fp64, on one core: five times the time.
    """
    rows, width = columns.shape
    blocks = np.array_split(columns, max(1, rows // (TALL * width)))
    parts = list(pool.map(_qr, blocks))
    joined, _ = _qr(np.concatenate([upper for _, upper in parts]))
    ends = np.cumsum([len(upper) for _, upper in parts])[:-1]
    bases = (basis for basis, _ in parts)
    return np.concatenate(list(pool.map(np.matmul, bases, np.split(joined, ends))))


def _qr(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return cast(tuple[np.ndarray, np.ndarray], linalg.qr(matrix, mode="economic", check_finite=False))


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
