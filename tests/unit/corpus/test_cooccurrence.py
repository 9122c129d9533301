from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from bertie.corpus import cooccurrence
from bertie.corpus.cooccurrence import cooccurrence_vectors
from bertie.corpus.shards import open_shards
from bertie.corpus.token_corpus import Corpus


def make_corpus(documents: list[list[int]], shards: int = 1) -> Corpus:
    lengths = [len(document) for document in documents]
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    cuts = [0, *(len(documents) * (shard + 1) // shards for shard in range(shards))]
    tokens = tuple(np.array([t for document in documents[a:b] for t in document], np.uint16) for a, b in pairwise(cuts))
    return Corpus(starts, starts, starts[cuts], tokens, ())


def cosine(vectors: np.ndarray, first: int, second: int) -> float:
    return float(vectors[first] @ vectors[second] / np.linalg.norm(vectors[first]) / np.linalg.norm(vectors[second]))


@pytest.fixture
def documents() -> list[list[int]]:
    """The neighbors of tokens 0 and 1 are 2 to 9, those of token 10 are 11 to 18. Token 19 never occurs."""
    rng = np.random.default_rng(0)
    generated = []
    for _ in range(600):
        middle = int(rng.choice([0, 1, 10]))
        near = rng.choice(np.arange(2, 10) if middle < 2 else np.arange(11, 19), 4)
        generated.append([*near[:2], middle, *near[2:]])
    return [[int(token) for token in document] for document in generated]


def vectors_of(corpus: Corpus, size: int, width: int, threads: int = 1) -> np.ndarray:
    with ThreadPoolExecutor(threads) as pool:
        return cooccurrence_vectors(pool, corpus, size, width)


def test_tokens_with_the_same_neighbors_have_similar_vectors(documents: list[list[int]]) -> None:
    vectors = vectors_of(make_corpus(documents), 20, 8)
    assert vectors.shape == (20, 8)
    assert vectors.dtype == np.float32
    assert cosine(vectors, 0, 1) > 0.9
    assert cosine(vectors, 0, 10) < 0.2
    assert not vectors[19].any()


def test_tokens_that_never_occur_have_zero_vectors(documents: list[list[int]]) -> None:
    """This includes the first ids, the special tokens of a vocabulary: SVD alone would leave rounding errors there."""
    vectors = vectors_of(make_corpus([[token + 5 for token in document] for document in documents]), 30, 16)
    assert not vectors[[0, 1, 2, 3, 4, 24, 25, 29]].any()
    assert vectors[5:24].any(axis=1).all()


def test_number_of_shards_does_not_matter_and_extra_columns_are_zero(documents: list[list[int]]) -> None:
    one, three = (vectors_of(make_corpus(documents, shards), 20, 30) for shards in (1, 3))
    assert np.allclose(one @ one.T, three @ three.T, atol=1e-4)
    assert one.shape == (20, 30)
    assert not one[:, 20:].any()


def test_cooccurrences_count_by_distance_within_documents() -> None:
    counts = cooccurrence.cooccurrence_counts(
        make_corpus([[0, 1, 2, 3, 4, 5], [6, 0]]), 8, cooccurrence.WINDOW
    ).toarray()
    expected = np.zeros((8, 8))
    for i in range(6):
        for j in range(6):
            if 0 < abs(i - j) <= 4:
                expected[i, j] = 1 / abs(i - j)
    expected[6, 0] = expected[0, 6] = 1
    assert counts == pytest.approx(expected)


@pytest.mark.parametrize("window", [1, 3, 10])
def test_chunks_and_threads_do_not_change_the_counts(
    documents: list[list[int]], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with empty documents, and with chunks that end within or at the end of a document."""
    documents = [document[: length % 6] for length, document in enumerate(documents[:100])]
    whole = cooccurrence.cooccurrence_counts(make_corpus(documents), 20, window).toarray()
    expected = np.zeros((20, 20))
    for document in documents:
        for i, first in enumerate(document):
            for distance, second in enumerate(document[i + 1 : i + 1 + window], 1):
                expected[first, second] += 1 / distance
    assert whole == pytest.approx(expected + expected.T, rel=1e-5)
    for chunk in (1, 2, 5, 7):
        monkeypatch.setattr(cooccurrence, "CHUNK", chunk)
        for threads in (1, 3):
            counts = cooccurrence.cooccurrence_counts(make_corpus(documents, 3), 20, window, threads)
            assert counts.toarray() == pytest.approx(whole, rel=1e-5)
            assert counts.nnz == np.count_nonzero(whole)


def test_only_the_first_shards_are_read(documents: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = make_corpus(documents, 3)
    monkeypatch.setattr(cooccurrence, "MAX_TOKENS", int(corpus.shard_starts[1]))
    first = make_corpus(documents[:200])
    counts = [cooccurrence.cooccurrence_counts(each, 20, 4).toarray() for each in (corpus, first)]
    assert counts[0] == pytest.approx(counts[1])


def test_singular_vectors_are_those_of_a_dense_svd() -> None:
    """Of a matrix whose singular values fall fast, so that the sample contains the largest ones."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((60, 60)))[0] for _ in range(2))
    dense = (left * 0.75 ** np.arange(60)) @ right.T
    matrix = cooccurrence.sparse.csr_matrix(dense.astype(np.float32))
    with ThreadPoolExecutor(2) as pool:
        vectors, values = cooccurrence._randomized_svd(pool, matrix, 8)
    assert values == pytest.approx(0.75 ** np.arange(8), rel=1e-3)
    assert np.abs(vectors.T @ left[:, :8]) == pytest.approx(np.eye(8), abs=5e-3)


@pytest.mark.parametrize(("rows", "columns"), [(500, 7), (31, 7), (7, 7), (100, 1), (60, 15)])
def test_the_columns_of_the_basis_are_orthonormal_and_span_those_given(rows: int, columns: int) -> None:
    """In one block and in several, also of columns of very different sizes, as powers of a matrix have."""
    given = np.random.default_rng(0).standard_normal((rows, columns)) * 10.0 ** -np.arange(columns)
    given = given.astype(np.float32)
    with ThreadPoolExecutor(2) as pool:
        basis = cooccurrence._orthonormal_basis(pool, given)
    assert basis.shape == given.shape
    assert basis.dtype == np.float32
    assert basis.T @ basis == pytest.approx(np.eye(columns), abs=1e-5)
    assert basis @ (basis.T @ given) == pytest.approx(given, abs=1e-5)


def test_vectors_are_computed_beside_other_work(documents: list[list[int]]) -> None:
    corpus = make_corpus(documents)
    with cooccurrence.vectors_ahead(corpus, 20, 8, 2) as vectors:
        assert vectors().tobytes() == vectors_of(corpus, 20, 8).tobytes()


def test_vectors_that_nobody_waits_for_are_not_computed_to_the_end(
    documents: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, ended, chunks = Event(), Event(), list[int]()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *args: Any, **kwargs: Any) -> None:
            super().shutdown(*args, **kwargs)
            ended.set()

    def count(corpus: Corpus, ranks: np.ndarray, first: int, window: int) -> Any:  # noqa: ARG001
        chunks.append(first)
        entered.set()
        assert ended.wait(120)
        return cooccurrence.sparse.csr_matrix((20, 20), dtype=np.float32)

    monkeypatch.setattr(cooccurrence, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(cooccurrence, "CHUNK", 10)
    monkeypatch.setattr(cooccurrence, "_counts_of_chunk", count)
    with cooccurrence.vectors_ahead(make_corpus(documents), 20, 8, 1):
        assert entered.wait(120)
    assert len(chunks) == 1


def test_positive_pmi_follows_its_definition() -> None:
    counts = np.array([[0, 8.0, 2.0], [8.0, 0, 1.0], [2.0, 1.0, 4.0]], np.float32)
    pmi = cooccurrence._positive_pmi(cooccurrence.sparse.csr_matrix(counts)).toarray()
    counts[counts <= 1] = 0
    totals = counts.sum(1)
    contexts = totals**0.75 / (totals**0.75).sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(np.log(counts / totals[:, None] / contexts), 0)
    assert pmi == pytest.approx(expected, rel=1e-5)
    assert 0 < (pmi > 0).sum() < 6


def test_vectors_are_deterministic(small_shards: Path) -> None:
    corpus = open_shards(small_shards).train
    found = [vectors_of(corpus, 500, 32, threads).tobytes() for threads in (1, 1, 3)]
    assert found[0] == found[1] == found[2]
