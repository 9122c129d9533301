"""Mined negatives: never a known positive or an equal text, below the margin, in bounded memory, the same bytes twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.retrieval.test_collection import folder, lines

from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.examples.queries.collection import Collection
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.mine import MineOptions, _limit, mine, pairs_as_collection
from bertie.tasks.embed import Embed
from bertie.tasks.scoring import labeled_examples

DOCUMENTS = {
    "p": "the red apple of the orchard",
    "same": "The red  apple of the orchard",
    "query": "red apple",
    "hard": "a red apple, and a red apple",
    "near": "a red car",
    "far": "an apple tree in spring",
    "other": "the deep sea",
    "empty": "",
}
GIVEN = Collection(DOCUMENTS, {"q": "red apple", "s": "deep sea"}, {"q": {"p": 1}, "s": {"other": 1}})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_what_is_dropped_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best document is the query itself; "hard" is above the margin; s has no other document with one of its words."""
    scores = dict(zip(DOCUMENTS, next(iter(Bm25().scores(GIVEN))), strict=True))
    assert min(scores["query"], scores["hard"]) > scores["p"] > scores["near"]
    found = mine(GIVEN, tmp_path / "a.jsonl")
    assert rows(tmp_path / "a.jsonl") == [
        {"query": "red apple", "pos": [DOCUMENTS["p"]], "neg": [DOCUMENTS["near"], DOCUMENTS["far"]]}
    ]
    assert found["dropped"] == {"known positives": 2, "equal texts": 2, "above the margin": 1}
    assert (found["queries"], found["negatives"], found["without"]) == (1, 2, 1)
    assert "left out 1 of 2 queries: no negative remains for them" in capsys.readouterr().err
    [example] = labeled_examples(Embed().reader, tmp_path / "a.jsonl")
    assert example.negatives == (DOCUMENTS["near"], DOCUMENTS["far"])
    mine(GIVEN, tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    mine(GIVEN, tmp_path / "c.jsonl", options=MineOptions(negatives=1))
    assert [row["neg"] for row in rows(tmp_path / "c.jsonl")] == [[DOCUMENTS["near"]]]
    mine(GIVEN, tmp_path / "d.jsonl", options=MineOptions(negatives=1, random=2))
    for row in rows(tmp_path / "d.jsonl"):
        assert len(set(row["neg"])) == 2 + (row["query"] == "red apple")
        assert not {*row["neg"]} & {*row["pos"], row["query"], DOCUMENTS["same"], ""}


def test_reranker_filters(tmp_path: Path) -> None:
    class Filter:
        def rerank(self, query: str, texts: list[str], label: str) -> np.ndarray:
            assert (query, texts[0], label) == ("red apple", DOCUMENTS["p"], "yes")
            return np.array([1.0, *(1.0 if "car" in text else 0.0 for text in texts[1:])])

    reranker: Any = Filter()
    found = mine(GIVEN, tmp_path / "a.jsonl", reranker=reranker, options=MineOptions(label="yes"))
    assert [row["neg"] for row in rows(tmp_path / "a.jsonl")] == [[DOCUMENTS["far"]]]
    assert found["dropped"]["relevant for the filter"] == 1


def test_time_before_the_first_query_is_not_that_of_the_queries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened, progress = list[str](), console.progress

    class Search(Bm25):
        def scores(self, collection: Collection) -> Any:
            happened.append("documents")
            return super().scores(collection)

    monkeypatch.setattr(console, "progress", lambda *given: [happened.append(given[0]), progress(*given)][1])
    assert mine(GIVEN, tmp_path / "a.jsonl", bm25=Search())["negatives"] == 2
    assert happened == ["documents", "mine"]
    assert len(rows(tmp_path / "a.jsonl")) == 1


def test_nothing_that_remains_is_an_error(tmp_path: Path) -> None:
    alone = Collection({"p": "red apple tree"}, {"q": "red apple"}, {"q": {"p": 1}})
    with pytest.raises(UserError, match="no negative remains; dropped: 1 known positives"):
        mine(alone, tmp_path / "a.jsonl")
    assert not (tmp_path / "a.jsonl").exists()
    (tmp_path / "b.jsonl").touch()
    for name in ("b.jsonl", "c.csv"):
        with pytest.raises(UsageError, match=r"give a new file X.jsonl"):
            mine(GIVEN, tmp_path / name)


def test_command_mines_from_pairs_with_a_model(pretrained: Path, tmp_path: Path) -> None:
    """Equal texts are one document, so the positives of a query are known from all its pairs."""
    pairs = [("a b", "p"), ("a b", "q"), ("c", "r"), ("d", "q"), ("e", "s"), ("f", "t")]
    data = lines(tmp_path / "pairs.jsonl", [{"query": a, "document": b} for a, b in pairs])
    command = [
        "mine",
        "--data",
        str(data),
        "--model",
        str(pretrained),
        "--margin",
        "1",
        "--out",
        str(tmp_path / "a.jsonl"),
    ]
    assert main(command) == 0
    found = rows(tmp_path / "a.jsonl")
    assert found
    for row in found:
        assert row["pos"] == [b for a, b in pairs if a == row["query"]]
        assert not set(row["pos"]) & set(row["neg"])
        assert len(set(row["neg"])) == len(row["neg"]) <= 5


def test_a_collection_gives_all_its_documents(tmp_path: Path) -> None:
    """Also those that are right for no query; texts of pairs with the score 0 are no positives."""
    folder(tmp_path)
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n")
    assert set(pairs_as_collection(tmp_path).documents) == {"d1", "d2"}
    assert set(pairs_as_collection(tmp_path / "qrels" / "test.tsv").queries) == {"q1", "q2"}
    scored = lines(tmp_path / "a.jsonl", [{"query": "a", "document": x, "label": y} for x, y in (("p", 1), ("n", 0))])
    assert list(pairs_as_collection(scored).positives.values()) == [["0"]]
    unjudged = Collection(DOCUMENTS, {"q": "red apple", "unknown": "x"}, {"q": {"p": 1}})
    assert mine(unjudged, tmp_path / "b.jsonl")["queries"] == 1


def test_margin_is_below_the_positive_also_for_distances() -> None:
    assert _limit(10.0, MineOptions(margin=0.9)) == 9.0
    assert _limit(-10.0, MineOptions(margin=0.9)) == -11.0
