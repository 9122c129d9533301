"""Next sentence prediction, sentence order prediction, and similarities of texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import run

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.examples.texts import Example
from bertie.predict import pair_similarities as pairs_module
from bertie.predict.pair_similarities import pair_similarities
from bertie.predict.predictor import Predictor
from bertie.predict.sentence_pairs import pair_objective
from bertie.predict.vectors import cosines


def test_next_sentence_by_hand(predictor: Predictor, small_texts: list[str]) -> None:
    pairs = [(text[:20], text[20 : 30 + 5 * i]) for i, text in enumerate(small_texts[:5])]
    found = predictor.next_sentence(pairs)
    for pair, probability in zip(pairs, found, strict=True):
        first = torch.from_numpy(predictor.hidden_states([pair])[0][-1, :1])
        with torch.inference_mode():
            expected = predictor.model.heads["nsp"].logits(first).softmax(-1)[0, 0]  # type: ignore[operator]
        assert probability == pytest.approx(float(expected), abs=1e-5)
    assert found.dtype == np.float64
    assert found.std() > 0.01
    assert predictor.next_sentence([]).shape == (0,)


def test_pairs_that_cannot_be_read_are_nan(predictor: Predictor, capsys: pytest.CaptureFixture[str]) -> None:
    found = predictor.next_sentence([("the", "ka"), ("the", ""), ("the " * 40, "ka " * 40)])
    assert np.isnan(found).tolist() == [False, True, True]
    told = capsys.readouterr().err
    assert "2 of 3 are NaN: pair 2 has a text without tokens: remove it; pair 3 has" in told
    with pytest.raises(UserError, match="pair 1 has a text without tokens"):
        predictor.next_sentence([("", "a")])
    with pytest.raises(UsageError, match="a pair has two texts: 'ab'"):
        predictor.next_sentence(["ab"])  # type: ignore[list-item]
    with pytest.raises(UserError, match="is not a text but of type int"):
        predictor.next_sentence([("a", 3)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("negatives", "words"), [("random", "from another document"), ("swapped", "A does not follow B")]
)
def test_command_line_says_what_the_head_predicts(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], negatives: str, words: str
) -> None:
    folder = shutil.copytree(pretrained, tmp_path / "run")
    (folder / "config.toml").write_text(f'[layout]\nkind = "pairs"\nnegatives = "{negatives}"\nmax_length = 64\n')
    [result], told = run("next-sentence", folder, "the ka", "in the du", capsys=capsys)
    [expected] = bertie.load(folder, threads=1).next_sentence([("the ka", "in the du")])
    assert result["probability"] == pytest.approx(expected)
    assert result["objective"] == {"random": "next sentence", "swapped": "sentence order"}[negatives]
    assert words in told
    assert main(["next-sentence", str(folder), "the ka", ""]) == 1


def test_models_without_a_run_were_trained_on_next_sentences(pretrained: Path) -> None:
    assert pair_objective(pretrained) == "next sentence"


def test_cosines() -> None:
    first = np.array([[3, 4], [1, 0], [0, 0]], np.float32)
    second = np.array([[4, 3], [-2, 0]], np.float32)
    np.testing.assert_allclose(cosines(first, second), [[0.96, -0.6], [0.8, -1], [0, 0]], atol=1e-6)
    assert cosines(first, first).max() <= 1


def test_similarity_is_the_cosine_of_the_vectors(predictor: Predictor, small_texts: list[str]) -> None:
    texts, others = [text[:30] for text in small_texts[:3]], [text[:40] for text in small_texts[3:5]]
    vectors = predictor.embed([*texts, *others], "cls").astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(predictor.similarity(texts, others, "cls"), vectors[:3] @ vectors[3:].T, atol=1e-5)
    own = predictor.similarity(texts)
    np.testing.assert_allclose(np.diag(own), 1, atol=1e-5)
    np.testing.assert_allclose(own, own.T, atol=1e-6)


def test_pairs_are_compared_in_blocks(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs_module, "SEQUENCES_AT_ONCE", 2)
    error = UserError("bad")
    pairs = [Example("the", "ka", None, "1"), error, Example("in", "in", None, "3"), Example("du", "the", None, "4")]
    found = list(pair_similarities(predictor, pairs))
    assert found[1] is error
    for pair, value in zip(pairs, found, strict=True):
        if isinstance(pair, Example):
            expected = predictor.similarity([pair.text], [pair.text_pair or ""])[0, 0]
            assert value == pytest.approx(float(expected), abs=1e-5)


def test_similarity_on_the_command_line(
    predictor: Predictor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [result], told = run("similarity", predictor.folder, "the ka", "in the", "du", capsys=capsys)
    expected = predictor.similarity(["the ka", "in the", "du"])
    np.testing.assert_allclose(result["similarity"], expected, atol=1e-5)
    assert f"{expected[0, 1]:.3f}" in told
    path = tmp_path / "a.tsv"
    path.write_text("one\ttwo\tlabel\nthe ka\tin the\tx\nbroken\nthe\tthe\ty\n")
    columns = ["--input", path, "--text", "one", "--text-pair", "two"]
    (*lines, result), told = run("similarity", predictor.folder, *columns, capsys=capsys)
    assert lines[0]["similarity"] == pytest.approx(float(expected[0, 1]), abs=1e-5)
    assert "a.tsv:3" in lines[1]["error"]
    assert lines[2]["similarity"] == pytest.approx(1, abs=1e-5)
    assert result == {"pairs": 3, "errors": 1}
    assert "1 of 3 pairs have an" in told
