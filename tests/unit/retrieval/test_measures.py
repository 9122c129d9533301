"""Measures and orders of ties are those of trec_eval, in all odd cases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import pytrec_eval

from bertie.examples.queries.collection import Collection
from bertie.retrieval import measures
from bertie.retrieval.judge import judge, means, tie_changes
from bertie.retrieval.system import System

CUTOFFS = (1, 3, 10)
NAMES = {
    **{f"ndcg@{k}": f"ndcg_cut_{k}" for k in CUTOFFS},
    **{f"recall@{k}": f"recall_{k}" for k in CUTOFFS},
    "map": "map",
    "mrr": "recip_rank",
}


class Scores:
    """A system with given scores."""

    name, settings = "given", ""

    def __init__(self, *rows: np.ndarray):
        self.rows = rows

    def scores(self, collection: Collection) -> Iterator[np.ndarray]:  # noqa: ARG002
        yield from self.rows


def test_measures_are_those_of_trec_eval() -> None:
    """1,000 queries: equal scores, also such that only float64 tells them apart, grades below 0, documents without a grade,
    queries without a positive, positives that are no documents, and rankings of all lengths."""
    rng = np.random.default_rng(0)
    ids = [f"{name}{number}" for name in ("d", "D", "é") for number in range(12)]
    grades, rows, run = {}, [], {}
    for number in range(1000):
        query = f"q{number}"
        judged = rng.choice(len(ids), rng.integers(1, 20), replace=False)
        grades[query] = {ids[i]: int(rng.integers(-2, 4)) for i in judged} | {"gone": int(rng.integers(0, 2))}
        scores = rng.integers(0, 4, len(ids)) / 3 + rng.choice([0, 1e-12], len(ids))
        scores[rng.random(len(ids)) < rng.random()] = -np.inf
        scores[0] = 0.5  # pytrec_eval leaves out a query without a document
        rows.append(scores)
        run[query] = {name: float(score) for name, score in zip(ids, scores, strict=True) if score > -np.inf}
    collection = Collection(dict.fromkeys(ids, ""), dict.fromkeys(grades, ""), grades)
    judged = judge(Scores(*rows), collection, CUTOFFS, 1000)
    names = measures.names(CUTOFFS)
    wanted = pytrec_eval.RelevanceEvaluator(grades, {"ndcg_cut.1,3,10", "recall.1,3,10", "map", "recip_rank"}).evaluate(
        run
    )
    for query, values in zip(grades, judged.values, strict=True):
        of_query = dict(zip(names, values, strict=True))
        assert {name: wanted[query][theirs] for name, theirs in NAMES.items()} == pytest.approx(of_query, abs=1e-6), (
            query
        )


def test_ranking_is_cut_as_if_all_were_sorted() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        scores, ties = rng.integers(0, 3, 20).astype(float), rng.permutation(20)
        depth = int(rng.integers(1, 25))
        assert measures.order(scores, ties, depth).tolist() == np.lexsort((ties, -scores))[:depth].tolist()


def test_equal_scores_are_told_if_their_order_matters() -> None:
    """A constant system: by id, the last one first, the positive is the first of four; in the worst order it is the last."""
    collection = Collection(dict.fromkeys("abcd", "x"), {"q": "y"}, {"q": {"d": 1}})
    constant: System = Scores(np.zeros(4))
    judged = judge(constant, collection, (10,), 1000)
    assert judged.found == {"q": [("d", 0), ("c", 0), ("b", 0), ("a", 0)]}
    assert tie_changes([judged], measures.names((10,))) == [
        "given: documents with equal scores: with the best one last, ndcg@10 is 0.4307, not 1.0000",
        "given: documents with equal scores: with the best one last, map is 0.2500, not 1.0000",
        "given: documents with equal scores: with the best one last, mrr is 0.2500, not 1.0000",
    ]
    assert tie_changes([judge(Scores(np.arange(4.0)), collection, (10,), 9)], measures.names((10,))) == []


def test_own_document_is_left_out_on_request() -> None:
    collection = Collection({"a": "x", "b": "y"}, {"a": "x"}, {"a": {"b": 1}})
    for omit, found in ((False, ["a", "b"]), (True, ["b"])):
        judged = judge(Scores(np.array([2.0, 1.0])), collection, (10,), 9, omit_own_id=omit)
        assert [document for document, _ in judged.found["a"]] == found
    assert collection.is_own("a")


def test_interval_of_a_mean_covers_it() -> None:
    """Of 200 samples of 50 queries with the mean 0.5, the 95 % interval holds the mean in 180 to 199."""
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(200):
        [one] = means(rng.random((50, 1)))
        held += one.low <= 0.5 <= one.high
    assert 180 <= held <= 199
