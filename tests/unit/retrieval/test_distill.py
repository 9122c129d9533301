"""Static vectors: the mean of those of the tokens, near the teacher's, and nearer with texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.unit.retrieval.test_collection import lines

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import cosines


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bertie.retrieval.system.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def teacher(pretrained: Path) -> Predictor:
    return bertie.load(pretrained)


def agreement(static: Predictor, teacher: Predictor, texts: list[str]) -> float:
    """Return the correlation of the cosines of all pairs of texts."""
    one, other = (
        cosines(vectors, vectors)
        for vectors in (static.embed(texts), teacher.embed(texts) - teacher.embed(texts).mean(0))
    )
    above = np.triu_indices(len(texts), 1)
    return float(np.corrcoef(one[above], other[above])[0, 1])


def test_the_vector_of_a_text_is_the_mean_of_those_of_its_tokens(
    teacher: Predictor, tmp_path: Path, small_texts: list[str]
) -> None:
    """Frequent tokens have shorter vectors; special tokens have none."""
    result = bertie.distill(teacher, tmp_path / "static")
    static = bertie.load(tmp_path / "static")
    vectors = static.model.state_dict()["encoder.embeddings.word.weight"].numpy()
    assert result == {"model": str(tmp_path / "static"), "vectors": len(vectors), "width": vectors.shape[1], "texts": 0}
    text = " ".join(small_texts[0].split()[:5])
    [ids] = static.tokenizer.encode([text])
    expected = vectors[ids].sum(0) / (len(ids) + 2)
    np.testing.assert_allclose(static.embed([text])[0], expected, rtol=1e-4, atol=1e-7)
    assert not vectors[static.tokenizer.special_ids].any()
    ordinary = np.linalg.norm(vectors[static.tokenizer.ordinary_ids], axis=1)
    assert ordinary[:5].mean() < ordinary[-20:].mean()
    assert "distilled from" in (tmp_path / "static" / "README.md").read_text(encoding="utf-8")


def test_texts_bring_the_vectors_nearer_to_the_teacher(
    teacher: Predictor, tmp_path: Path, small_texts: list[str]
) -> None:
    texts = list(dict.fromkeys(small_texts))
    seen, unseen = texts[:60], texts[60:100]
    bertie.distill(teacher, tmp_path / "without")
    data = lines(tmp_path / "texts.jsonl", [{"text": text} for text in seen])
    bertie.distill(teacher, tmp_path / "with", data)
    without, learned = bertie.load(tmp_path / "without"), bertie.load(tmp_path / "with")
    assert agreement(learned, teacher, seen) > agreement(without, teacher, seen) + 0.1
    assert agreement(learned, teacher, unseen) > agreement(without, teacher, unseen)


def test_command_reads_files_and_the_result_searches(pretrained: Path, tmp_path: Path, small_texts: list[str]) -> None:
    data = lines(tmp_path / "texts.jsonl", [{"text": text} for text in ["", *small_texts[:9]]])
    out = tmp_path / "static"
    assert main(["distill", str(pretrained), "--to", "static", "--out", str(out), "--texts", str(data)]) == 0
    assert bertie.load(out).embed(small_texts[:3]).shape == (3, 32)
    assert main(["embed", str(out), "--input", str(data), "--out", str(tmp_path / "vectors.npy")]) == 0
    pairs = [{"query": text, "document": text} for text in small_texts[:4]]
    config = {"extends": "embed", "max_length": 16, "training": {"epochs": 1}}
    assert bertie.finetune(config, pairs, out, dev=pairs)


def test_what_cannot_be_distilled_is_refused(teacher: Predictor, tmp_path: Path) -> None:
    bertie.distill(teacher, tmp_path / "static")
    with pytest.raises(UsageError, match="already exists"):
        bertie.distill(teacher, tmp_path / "static")
    with pytest.raises(UserError, match="static already"):
        bertie.distill(tmp_path / "static", tmp_path / "again")
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(UserError, match="--texts: all are empty"):
        bertie.distill(teacher, tmp_path / "again", tmp_path / "empty.txt")
    assert not (tmp_path / "again").exists()
