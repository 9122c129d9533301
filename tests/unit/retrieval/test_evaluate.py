"""An evaluated search: the systems beside it, the files that it writes, and what training has shown of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.retrieval.test_collection import DOCUMENTS, GRADES, QUERIES, folder, lines

import bertie
from bertie.base import console
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.examples.queries.collection import Collection, read_collection
from bertie.predict.predictor import Predictor
from bertie.retrieval import system
from bertie.retrieval.baselines import Bm25, Lsa, Words
from bertie.retrieval.evaluate import SearchOptions, evaluate_search
from bertie.retrieval.judge import judge
from bertie.retrieval.leaks import find_leaks
from bertie.retrieval.mine import pairs_as_collection
from bertie.retrieval.system import DenseSearch, Reranker, RunFile
from bertie.tasks.classify import Classify


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def model(pretrained: Path) -> Predictor:
    return bertie.load(pretrained)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return read_collection(folder(tmp_path)).judged()


def test_command_writes_rankings_scores_and_a_page(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder(tmp_path)
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    command = ["evaluate", str(pretrained), "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    printed = capsys.readouterr().out.splitlines()
    assert main([*command, "--json"]) == 0  # replaces it
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [line.partition(":")[0] for line in printed[:5]] == ["model", "BM25", "LSA", "fused", "model − BM25"]
    assert (result["queries"], result["documents"]) == (2, 2)
    assert result["systems"]["BM25"]["ndcg@10"] == [1, 1, 1]
    assert set(result["scores"]) == {"ndcg@10", "ndcg@100", "recall@10", "recall@100", "map", "mrr"}
    [rows] = result["leaks"].values()  # q1 was trained on: it equals itself, and its positive is one
    assert rows["shared_positives"] == 0.5
    assert [row["queries"] for row in list(rows.values())[1:]] == [2, 1, 1]
    out = tmp_path / "out"
    assert json.loads((out / "scores.json").read_text())["scores"] == result["scores"]
    assert (out / "bm25.trec").read_text().split()[:4] == ["q1", "Q0", "d1", "1"]
    assert [json.loads(line)["query"] for line in (out / "queries.jsonl").read_text().splitlines()] == ["q1", "q2"]
    assert "What the training data has shown" in (out / "report.html").read_text()


def test_files_in_place_of_a_folder(pretrained: Path, tmp_path: Path) -> None:
    corpus, queries = lines(tmp_path / "c.jsonl", DOCUMENTS), lines(tmp_path / "q.jsonl", QUERIES)
    (tmp_path / "grades.txt").write_text("q1 0 d1 2\nq2 0 d2 1\n")
    files = ["--corpus", str(corpus), "--queries", str(queries), "--qrels", str(tmp_path / "grades.txt")]
    assert main(["evaluate", str(pretrained), *files]) == 0
    assert main(["evaluate", str(pretrained), *files[:4]]) == 2
    assert main(["evaluate", str(pretrained)]) == 2


def test_vectors_of_documents_are_kept_by_content(model: Predictor, collection: Collection, tmp_path: Path) -> None:
    dense = DenseSearch(model)
    first = list(dense.scores(collection))
    [kept] = (tmp_path / "cache" / "vectors").glob("*.npy")
    marked = np.load(kept)[::-1].copy()
    np.save(kept, marked)
    np.testing.assert_array_equal(list(dense.scores(collection)), np.array(first)[:, ::-1])
    other = Collection({**collection.documents, "d2": "Dogs bark!"}, collection.queries, collection.grades)
    list(dense.scores(other))
    assert len(list((tmp_path / "cache" / "vectors").glob("*.npy"))) == 2


def test_documents_without_a_vector_are_not_found(without_special_tokens: Path, collection: Collection) -> None:
    documents = {"empty": "", **collection.documents}
    [first, _] = DenseSearch(bertie.load(without_special_tokens)).scores(
        Collection(documents, collection.queries, collection.grades)
    )
    assert first[0] == -np.inf
    assert np.isfinite(first[1:]).all()


def test_reranker_has_only_what_the_first_stage_found(
    model: Predictor, collection: Collection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads the first document of each query, which is wrong for q2: that query's positive stays missed."""
    first = tmp_path / "first.trec"
    first.write_text("q1 Q0 d1 1 2.0 a\nq1 Q0 d2 2 1.0 a\nq2 Q0 d1 1 2.0 a\nq2 Q0 d2 2 1.0 a\n")
    read = []

    class Pairs:
        folder, task, max_length = model.folder, Classify(labels=("0", "1"), paired=True), 32

        def rerank(self, query: str, texts: list[str], label: str) -> np.ndarray:
            console.warn("truncated")
            read.append((query, texts, label))
            return np.ones(len(texts))

    judged = judge(Reranker(Pairs(), RunFile(first, "first"), 1, "1"), collection, (10,), 100)  # pyright: ignore[reportArgumentType]
    assert read == [("what purrs?", ["Cats\npurr."], "1"), ("what barks?", ["Cats\npurr."], "1")]
    assert judged.found == {"q1": [("d1", 1.0)], "q2": [("d1", 1.0)]}
    assert judged.values[:, 0].tolist() == [1, 0]
    assert ", 32 tokens, over the first 1 of: first" in judged.settings
    assert "truncated" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("q1 Q0 d1 1 2.0 a\nq1 Q0 d1 2 2.0 a\n", "a.trec:2: the document d1 again for the query q1"),
        ("q1 Q0 d9 1 2.0 a\n", "the document 'd9' is not in"),
        ("q1 Q0 d1 1 high a\n", "a.trec:1: expected query, Q0, document, rank, score and name"),
        ("q1 d1 2.0\n", "a.trec:1: expected query, Q0"),
        ("q9 Q0 d1 1 2.0 a\n", "no query of"),
    ],
)
def test_bad_rankings_are_named(collection: Collection, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.trec").write_text(text)
    with pytest.raises(UserError, match=problem):
        list(RunFile(tmp_path / "a.trec", "a").scores(collection))


def test_written_ranking_is_read_as_it_was(model: Predictor, collection: Collection, tmp_path: Path) -> None:
    evaluate_search(model, collection, tmp_path / "out")
    options = SearchOptions(compare=(tmp_path / "out" / "model.trec",))
    result = evaluate_search(model, collection, options=options)
    assert all(values == [0, 0, 0] for values in result["differences"][str(options.compare[0])].values())


def test_ranking_of_any_program_is_judged(
    model: Predictor, collection: Collection, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """As the model that wrote it, which is not loaded, beside the same baselines."""
    expected = evaluate_search(model, collection, tmp_path / "out")
    expected["differences"].pop("fused")  # a ranking has no vectors
    ranking = str(tmp_path / "out" / "model.trec")
    command = ["evaluate", ranking, "--data", str(tmp_path), "--out", str(tmp_path / "again")]
    assert main([*command, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["scores"], result["differences"]) == (expected["scores"], expected["differences"])
    assert result["systems"]["model"]["settings"] == f"the scores in {ranking}"
    assert (result["leaks"], result["headline"]) == ({}, "all queries")
    assert (tmp_path / "again" / "model.trec").read_bytes() == Path(ranking).read_bytes()
    pairs = lines(tmp_path / "pairs.jsonl", [{"text": "what purrs?", "text_pair": "x"}])
    told = evaluate_search(ranking, collection, options=SearchOptions(trained_on=(str(pairs),)))
    assert told["headline"] == "without near-equal training queries"
    assert main([*command, "--engine", "plain"]) == 2
    assert "leave out the flags of a model" in capsys.readouterr().err


def test_options_that_fit_nothing_are_refused(model: Predictor, collection: Collection, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no reranker"):
        evaluate_search(model, collection, options=SearchOptions(first_stage=tmp_path / "a.trec"))
    with pytest.raises(UsageError, match="give numbers from 1 to"):
        SearchOptions(cutoffs=(10, 2000))
    with pytest.raises(UsageError, match="the stemmers are none, arabic"):
        Words("klingon").of(["a"])


def test_words_are_stemmed_and_unspaced_text_gives_pairs() -> None:
    assert Words().of(["The running DOGS, and a cat."]) == [["run", "dog", "cat"]]
    assert Words("none").of(["The dogs", "東京都に", "ไทย"]) == [
        ["the", "dogs"],
        ["東京", "京都", "都に"],
        ["ไท", "ทย"],
    ]
    assert Words("french").of(["les chevaux"]) == [["cheval"]]


@pytest.mark.parametrize("baseline", [Bm25(), Lsa()])
def test_baselines_take_texts_without_words(baseline: Bm25 | Lsa) -> None:
    documents, queries = {"a": "...", "b": "cats"}, {"q": "", "r": "cats"}
    [of_empty, of_cats] = baseline.scores(Collection(documents, queries, {}))
    assert of_empty.tolist() == [-np.inf, -np.inf]
    assert of_cats[0] == -np.inf < of_cats[1]
    assert [row.tolist() for row in baseline.scores(Collection({"a": ""}, queries, {}))] == [[-np.inf]] * 2


def test_leaks_of_pairs(collection: Collection, tmp_path: Path) -> None:
    pairs = lines(
        tmp_path / "pairs.jsonl", [{"text": "Purrs, what?", "text_pair": "x"}, {"text": "y", "text_pair": "Dogs bark."}]
    )
    leaks = find_leaks(collection, pairs_as_collection(pairs))
    assert leaks.equal.tolist() == leaks.near.tolist() == [True, False]
    assert leaks.shared.tolist() == [False, True]
    assert GRADES["q2"] == {"d2": 1}


def test_references_on_real_collections(shared_data: Path) -> None:
    """BM25 as Anserini's on Cranfield, and the leaks that were counted by hand."""
    root = shared_data / "retrieval"
    cranfield = read_collection(root / "cranfield").judged()
    assert judge(Bm25(), cranfield, (10,), 1000).values[:, 0].mean() == pytest.approx(0.3429, abs=0.0005)
    leaks = {
        name: find_leaks(read_collection(root / name).judged(), pairs_as_collection(root / name))
        for name in ("scifact", "nfcorpus")
    }
    assert {name: (leak.near.sum(), leak.equal.sum()) for name, leak in leaks.items()} == {
        "scifact": (69, 3),
        "nfcorpus": (5, 4),
    }


def test_flags_and_ids_that_fit_nothing_are_refused(pretrained: Path, model: Predictor, tmp_path: Path) -> None:
    folder(tmp_path)
    assert main(["evaluate", str(pretrained), "--data", str(tmp_path), "--strict"]) == 2
    labeled = lines(tmp_path / "a.jsonl", [{"text": "a", "label": "x"}])
    assert main(["evaluate", str(pretrained), "--data", str(labeled), "--depth", "10", "--cutoffs", "5"]) == 2
    blank = Collection({"d 1": "a"}, {"q": "a"}, {"q": {"d 1": 1}})
    with pytest.raises(UserError, match="the id 'd 1' has a blank"):
        evaluate_search(model, blank, tmp_path / "out")
    assert evaluate_search(model, blank)["queries"] == 1
