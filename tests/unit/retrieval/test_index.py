"""An index of a folder: whole sentences in passages, only new ones are read, exact results, refused for another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.retrieval.test_collection import lines

import bertie
from bertie.base.contracts import Document
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.examples.queries.collection import Collection
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import cosines
from bertie.retrieval.baselines import Bm25
from bertie.retrieval.fused import Fused, FusionWeight, choose_weight, fuse, pseudo_queries
from bertie.retrieval.index import IndexOptions, open_index
from bertie.retrieval.passages import long_sentences, passages
from bertie.retrieval.system import DenseSearch
from bertie.retrieval.vector_store import Codes, VectorStore
from bertie.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(pretrained: Path) -> Predictor:
    return bertie.load(pretrained, threads=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def texts(tmp_path: Path, small_texts: list[str]) -> Path:
    """A folder with a file for each of 30 documents."""
    files = tmp_path / "texts"
    files.mkdir()
    for number, text in enumerate(small_texts[:30]):
        (files / f"{number:02}.txt").write_text(text, encoding="utf-8")
    return files


def test_passages_are_whole_sentences_below_the_heading_of_their_section(small_tokenizer: Tokenizer) -> None:
    text = "# Ban kopa\n\nThe ban. The kopa is a ban.\n\n## Other\n```sh\n# no heading\n```\nLast one."
    found = list(passages([Document(text, "a.md:1")], small_tokenizer, 60, "en"))
    assert [(each.document, each.heading, each.sentences) for each in found] == [
        ("a.md:1", "Ban kopa", ("The ban.", "The kopa is a ban.")),
        ("a.md:1", "Other", ("```sh", "# no heading", "```", "Last one.")),
    ]
    assert found[0].text == "Ban kopa\nThe ban. The kopa is a ban."


def test_a_comment_in_a_block_of_code_is_no_heading(small_tokenizer: Tokenizer) -> None:
    text = "# Ban\n\nThe ban.\n\n```sh\n# kopa\nthe kopa\n```\n\n## Other\nLast one. ```# the```\n\n~~~\n# ban\n"
    found = passages([Document(text, "a.md:1")], small_tokenizer, 60, "en")
    assert [each.heading for each in found] == ["Ban", "Other"]


def test_the_words_of_text_without_blanks_are_counted(small_tokenizer: Tokenizer) -> None:
    line = "北京是中国的首都。" * 5
    found = list(passages([Document(f"{line}\n{line}", "a.txt:1")], small_tokenizer, 60, "en"))
    assert {each.heading for each in found} == {""}
    assert long_sentences(["北京是中国的首都。", "北京。", "the ban of kopa", "the ban"]) == [0, 2]


def test_no_passage_has_more_tokens_than_asked_and_none_is_lost(
    small_texts: list[str], small_tokenizer: Tokenizer
) -> None:
    whole = [text for text in small_texts[:40] if text]
    for tokens in (20, 60):
        found = list(passages([Document(text, text) for text in whole], small_tokenizer, tokens, "en"))
        assert max(len(ids) for ids in small_tokenizer.encode([each.text for each in found])) <= tokens
        for text in whole:
            parts = [word for each in found if each.document == text for word in each.text.split()]
            assert parts == text.split()


def test_a_search_finds_what_the_scores_of_model_and_words_say(model: Predictor, texts: Path, tmp_path: Path) -> None:
    result = bertie.index(texts, model, tmp_path / "index")
    opened = open_index(tmp_path / "index", model)
    all_texts = [row["text"] for row in opened.passages]
    assert (result["documents"], result["passages"], result["new"]) == (30, len(all_texts), len(set(all_texts)))
    query = " ".join(all_texts[7].split()[:6])
    dense = cosines(model.embed([query]), model.embed(all_texts))[0]
    words = next(iter(Bm25().scores(Collection(dict(enumerate(all_texts)), {"q": query}, {"q": {}}))))  # pyright: ignore
    expected = fuse(dense, words, opened.weight.value)
    hits = bertie.search(opened, query, 10)
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(expected)[::-1][:10], atol=1e-5)
    assert [hit.text for hit in hits] == [all_texts[i] for i in np.argsort(-expected, kind="stable")[:10]]
    assert {hits[0].text[start:end].lower() for start, end in hits[0].marks} <= set(query.lower().split())
    assert hits[0].document.rpartition(":")[0] in {path.name for path in texts.iterdir()}


def test_an_update_reads_new_passages_only_and_equals_a_new_index(
    model: Predictor, texts: Path, tmp_path: Path
) -> None:
    bertie.index(texts, model, tmp_path / "index")
    (texts / "03.txt").write_text("The new kopa bans the ban in the kopa.", encoding="utf-8")
    (texts / "04.txt").unlink()
    assert bertie.index(texts, model, tmp_path / "index")["new"] == 1
    bertie.index(texts, model, tmp_path / "fresh")
    for name in ("passages.jsonl", "index.json", "words/data.csc.index.npy"):
        assert (tmp_path / "index" / name).read_bytes() == (tmp_path / "fresh" / name).read_bytes()
    vectors = [np.load(tmp_path / name / "vectors.npy") for name in ("index", "fresh")]
    np.testing.assert_allclose(*vectors, atol=1e-6)
    assert bertie.index(texts, model, tmp_path / "index")["new"] == 0


def test_an_index_of_another_model_or_with_other_settings_is_refused(
    model: Predictor, texts: Path, tmp_path: Path, predictor_of_width_16: Predictor
) -> None:
    bertie.index(texts, model, tmp_path / "index")
    with pytest.raises(UserError, match="made by another model"):
        open_index(tmp_path / "index", predictor_of_width_16)
    with pytest.raises(UsageError, match="made by another model"):
        bertie.index(texts, predictor_of_width_16, tmp_path / "index")
    with pytest.raises(UsageError, match="made with another tokens: give another --out"):
        bertie.index(texts, model, tmp_path / "index", IndexOptions(tokens=30))
    with pytest.raises(UsageError, match="made with another bm25"):
        bertie.index(texts, model, tmp_path / "index", bm25=Bm25(k1=1.5))
    with pytest.raises(UsageError, match="is no index"):
        bertie.index(texts, model, texts.parent)
    with pytest.raises(UsageError, match="--tokens 99: the model reads 62"):
        bertie.index(texts, model, tmp_path / "new", IndexOptions(tokens=99))
    with pytest.raises(UsageError, match="--dimensions 32: the vectors have 32 numbers"):
        bertie.index(texts, model, tmp_path / "new", IndexOptions(dimensions=32))
    with pytest.raises(UsageError, match="is inside"):
        bertie.index(texts, model, texts / "index")
    with pytest.raises(UsageError, match="--top-k 0"):
        bertie.search(tmp_path / "index", "kopa", 0)
    rows = (tmp_path / "index" / "passages.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "index" / "passages.jsonl").write_text("".join(rows[1:]), encoding="utf-8")
    for used in (lambda: open_index(tmp_path / "index", model), lambda: bertie.index(texts, model, tmp_path / "index")):
        with pytest.raises(UserError, match="is damaged"):
            used()
    (tmp_path / "index" / "passages.jsonl").write_text(rows[0][:-9], encoding="utf-8")
    with pytest.raises(UserError, match=r"passages.jsonl:1: not valid JSON"):
        open_index(tmp_path / "index", model)


def test_a_column_with_titles_is_the_heading(model: Predictor, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.csv").write_text("title,text\nThe kopa,The ban is a kopa. The ban.\n", encoding="utf-8")
    bertie.index(str(tmp_path / "**" / "*.csv"), model, tmp_path / "index")
    [hit] = bertie.search(open_index(tmp_path / "index", model), "kopa")
    assert (hit.heading, hit.text, hit.document) == ("The kopa", "The ban is a kopa. The ban.", "sub/a.csv:2")


@pytest.fixture
def predictor_of_width_16(model: Predictor) -> Predictor:
    return replace(model, text_embedding=replace(model.text_embedding, dimensions=16))


def test_the_commands(texts: Path, pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "index")
    assert (
        main(
            ["index", str(texts), "--model", str(pretrained), "--out", out, "--dimensions", "16", "--codes", "usearch"]
        )
        == 0
    )
    assert "usearch finds 100.0 % of the exact first ten" in capsys.readouterr().err
    first = (texts / "05.txt").read_text(encoding="utf-8").split(".")[0]
    assert main(["search", out, first, "--top-k", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["found"]
    assert len(found) == 2
    assert "05.txt" in {hit["document"].rpartition(":")[0] for hit in found}


def test_a_collection_is_indexed_by_its_ids_and_its_dev_queries_choose_the_weight(
    model: Predictor, small_texts: list[str], tmp_path: Path
) -> None:
    documents = {f"d{number}": text for number, text in enumerate(small_texts[:30])}
    queries = {f"q{number}": text.split(".")[0] for number, text in enumerate(small_texts[:30])}
    grades = "".join(f"q{number}\td{number}\t1\n" for number in range(30))
    (tmp_path / "beir" / "qrels").mkdir(parents=True)
    (tmp_path / "beir" / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{grades}", encoding="utf-8")
    for name, texts in (("corpus", documents), ("queries", queries)):
        lines(tmp_path / "beir" / f"{name}.jsonl", [{"_id": key, "text": text} for key, text in texts.items()])
    bertie.index(tmp_path / "beir", model, tmp_path / "index")
    opened = open_index(tmp_path / "index", model)
    assert opened.weight.origin == "chosen on 30 dev queries"
    assert {hit.document for hit in bertie.search(opened, queries["q3"])} <= documents.keys()
    assert bertie.search(opened, queries["q3"])[0].document == "d3"


# Fused scores


def test_scores_are_scaled_over_the_candidates() -> None:
    dense, words = np.array([0.5, 0.3, 0.4]), np.array([-np.inf, 4.0, 2.0])
    np.testing.assert_allclose(fuse(dense, words, 0.25), [0.25, 0.75, 0.25 * 0.5 + 0.75 * 0.5])
    np.testing.assert_array_equal(fuse(np.full(2, -np.inf), np.array([1.0, 2.0]), 0.5), [0.25, 0.5])
    np.testing.assert_array_equal(fuse(np.ones(2), np.ones(2), 0.5), [0.5, 0.5])


def test_a_useless_model_has_a_small_weight(model: Predictor, small_texts: list[str]) -> None:
    collection = Collection(dict(zip(map(str, range(100)), small_texts, strict=False)), {}, {})
    weight = choose_weight(DenseSearch(model), Bm25(), collection)
    assert weight.value < 0.5
    assert weight.origin.endswith("sentences held out from the text")
    few = Collection(dict(zip("abc", small_texts, strict=False)), {}, {})
    assert choose_weight(DenseSearch(model), Bm25(), few).value == 0.5


def test_a_held_out_sentence_is_no_longer_in_its_document(small_texts: list[str]) -> None:
    collection = Collection(dict(zip(map(str, range(50)), small_texts, strict=False)), {}, {})
    judged = pseudo_queries(collection)
    assert judged.queries
    for name, query in judged.queries.items():
        assert query in collection.documents[name]
        assert query not in judged.documents[name]
        assert judged.grades[name] == {name: 1}


# Stores


@pytest.mark.parametrize("codes", ["float32", "int8", "binary", "usearch"])
def test_codes_find_the_nearest_and_scores_are_exact(codes: Codes) -> None:
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((40, 96)).astype(np.float32)
    vectors = (centers.repeat(50, 0) + 0.3 * rng.standard_normal((2000, 96))).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[5] = np.nan
    store = VectorStore.of(vectors, "cosine", codes)
    recalls = []
    for query in vectors[10:60]:
        expected = np.argsort(-np.nan_to_num(vectors @ query, nan=-np.inf))[:10]
        rows = store.nearest(query, 10)
        recalls.append(len({*rows.tolist()} & {*expected.tolist()}) / 10)
        np.testing.assert_allclose(store.exact(query, rows), (vectors @ query)[rows], atol=1e-6)
    assert np.mean(recalls) >= {"float32": 1.0, "int8": 0.999, "binary": 0.9, "usearch": 0.99}[codes]
    assert store.recall() == pytest.approx(np.mean(recalls), abs=0.05)


def test_int8_is_within_its_rounding_and_binary_counts_signs() -> None:
    vectors = np.random.default_rng(1).standard_normal((30, 70)).astype(np.float32)
    query = vectors[3]
    int8 = VectorStore.of(vectors, "dot", "int8").coarse(query)
    bound = np.abs(vectors).max(1) / 254 * np.abs(query).sum() + np.abs(query).max() / 254 * np.abs(vectors).sum(1)
    assert (np.abs(int8 - vectors @ query) <= 1.01 * bound).all()
    binary = VectorStore.of(vectors, "dot", "binary").coarse(query)
    np.testing.assert_array_equal(-binary, ((vectors > 0) != (query > 0)).sum(1))


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distances_are_searched_by_float_vectors_only(similarity: Any) -> None:
    vectors = np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32)
    assert 4 in VectorStore.of(vectors, similarity).nearest(vectors[4], 1)
    with pytest.raises(UsageError, match=f"compares by {similarity}"):
        VectorStore.of(vectors, similarity, "int8")


def test_the_weight_is_said(model: Predictor) -> None:
    fused = Fused(DenseSearch(model), Bm25(), FusionWeight(0.3, "chosen on 30 dev queries"))
    assert fused.settings == "0.3 of the model's score, scaled to 0 to 1: chosen on 30 dev queries"


def test_an_index_behind_a_link_finds_its_model(model: Predictor, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    bertie.index(texts, model, tmp_path / "link" / "index")
    opened = open_index(tmp_path / "link" / "index")
    assert opened.dense.model.folder == model.folder.resolve()
    with pytest.raises(UsageError, match="--top-k 0"):
        opened.search("ban", 0)
