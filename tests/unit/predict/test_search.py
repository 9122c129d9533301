"""`bertie search`: the nearest texts of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_models import run

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.predict.embed import TextUnit
from bertie.predict.predictor import Predictor


def test_the_nearest_texts_are_those_with_the_largest_cosines(predictor: Predictor, texts: list[str]) -> None:
    query = texts[103]
    expected = predictor.similarity([query], texts)[0]
    found = bertie.search(predictor, texts, query, top_k=20)
    assert [each.index for each in found] == np.argsort(-expected, kind="stable")[:20].tolist()
    assert [each.text for each in found] == [texts[each.index] for each in found]
    np.testing.assert_allclose([each.score for each in found], np.sort(expected)[::-1][:20], atol=1e-5)
    assert found[0].score == pytest.approx(1)
    assert found[0].text[:20] == query[:20]
    assert len(bertie.search(predictor, texts[:3], query, top_k=20)) == 3


def test_of_equal_texts_the_first_come_first(predictor: Predictor) -> None:
    found = bertie.search(predictor, ["b", "a", "b", "a", "a"], "a", top_k=2)
    assert [(each.index, each.text) for each in found] == [(1, "a"), (3, "a")]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_stored_vectors_give_the_same_texts(predictor: Predictor, texts: list[str], tmp_path: Path, dtype: str) -> None:
    unit = TextUnit(pooling="max", layers="second_to_last")
    bertie.embed(predictor, texts, tmp_path / "x.npy", unit, dtype=dtype)  # pyright: ignore[reportArgumentType]
    stored = bertie.search(predictor, texts, texts[7], unit=unit, vectors=tmp_path / "x.npy")
    assert stored[0].index == 7
    if dtype == "float32":
        computed = bertie.search(predictor, texts, texts[7], unit=unit)
        assert [each.index for each in stored] == [each.index for each in computed]
    with pytest.raises(UserError, match=r"the vector of text .* is of another"):
        bertie.search(predictor, texts, texts[7], vectors=tmp_path / "x.npy")
    with pytest.raises(UserError, match=r"\[176, 32\].*\[175, 32\]"):
        bertie.search(predictor, texts[1:], texts[7], unit=unit, vectors=tmp_path / "x.npy")


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean", "manhattan"])
def test_lengths_of_stored_vectors_count_if_the_similarity_depends_on_them(
    predictor: Predictor, tmp_path: Path, similarity: Similarity
) -> None:
    texts, path = ["der Hund", "die Katze", "ein Haus"], tmp_path / "x.npy"
    own = replace(predictor, text_embedding=replace(predictor.text_embedding, similarity=similarity))
    bertie.embed(own, texts, path, dtype="float16")
    assert bertie.search(own, texts, texts[1], vectors=path)[0].index == 1
    np.save(path, 2 * np.load(path))
    if similarity == "cosine":
        assert bertie.search(own, texts, texts[1], vectors=path)[0].index == 1
    else:
        with pytest.raises(UserError, match="the vector of text 2 is of another"):
            bertie.search(own, texts, texts[1], vectors=path)


def test_vectors_of_other_texts_are_refused(predictor: Predictor, tmp_path: Path) -> None:
    bertie.embed(predictor, ["a", "b", "c"], tmp_path / "x.npy")
    vectors = np.load(tmp_path / "x.npy")
    for changed, message in (
        (vectors[[0, 2, 1]], "the vector of text [23] is of another"),
        (np.where([[False], [True], [False]], np.float32(np.nan), vectors), "has no vector of text 2"),
        (vectors.astype("U8"), "an array <U8"),
        (vectors.astype(complex), "an array complex128"),
    ):
        np.save(tmp_path / "x.npy", changed)
        with pytest.raises(UserError, match=message):
            bertie.search(predictor, ["a", "b", "c"], "b", vectors=tmp_path / "x.npy")


def test_texts_without_tokens_are_not_found(without_special_tokens: Path, tmp_path: Path) -> None:
    predictor, texts = bertie.load(without_special_tokens, threads=1), ["ban", "", "kopa", " "]
    bertie.embed(predictor, texts, tmp_path / "x.npy")
    for vectors in (None, tmp_path / "x.npy"):
        found = bertie.search(predictor, texts, "kopa", vectors=vectors)
        assert [each.index for each in found] == [2, 0]
    with pytest.raises(UserError, match="an empty text has no tokens"):
        bertie.search(predictor, texts, "")


def test_wrong_arguments_are_refused(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"no array")
    (tmp_path / "z.npy").touch()
    for values, error, message in (
        ({"top_k": 0}, UsageError, "--top-k 0"),
        ({"vectors": tmp_path / "x.parquet"}, UsageError, "--vectors .*x.parquet"),
        ({"vectors": tmp_path / "y.npy"}, UsageError, "--vectors .*y.npy"),
        ({"vectors": tmp_path / "x.npy"}, UserError, "x.npy is damaged"),
        ({"vectors": tmp_path / "z.npy"}, UserError, "z.npy is damaged"),
    ):
        with pytest.raises(error, match=message):
            bertie.search(predictor, ["a", "b"], "a", **values)
    with pytest.raises(UserError, match="no texts in it"):
        bertie.search(predictor, [], "a")


def test_command(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"body": "the cat sat"}\n{"bad": 1}\n{"body": "a dog ran"}\n{"body": "the cat sits"}\n')
    search = ["search", pretrained, file, "the cat sat", "--text", "body", "--top-k", "2"]
    [result], said = run(*search, capsys=capsys)
    assert result["query"] == "the cat sat"
    assert result["found"][0] == {"score": pytest.approx(1, abs=1e-5), "index": 0, "text": "the cat sat"}
    assert len(result["found"]) == 2
    assert "1.0000  the cat sat\n" in said
    assert "1 of 4 rows cannot be read" in said
    run("embed", pretrained, "--input", file, "--text", "body", "--out", tmp_path / "x.npy", capsys=capsys)
    [stored], _ = run(*search, "--vectors", tmp_path / "x.npy", capsys=capsys)
    assert [each["index"] for each in stored["found"]] == [each["index"] for each in result["found"]]
