from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.corpus.test_cooccurrence import make_corpus

import bertie
from bertie.base.errors import UsageError, UserError
from bertie.cli import main
from bertie.corpus.cooccurrence import cooccurrence_counts
from bertie.corpus.shards import open_shards
from bertie.pretraining.glove import GloveConfig, train_vectors


def test_tokens_in_equal_contexts_get_similar_vectors() -> None:
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(300):  # 5 and 6 occur with 10 … 14, 7 and 8 with 20 … 24
        first, second = rng.integers(5, 7), rng.integers(7, 9)
        documents += [[first, *rng.integers(10, 15, 3)], [second, *rng.integers(20, 25, 3)]]
    settings = GloveConfig(hidden_size=8, window=3, epochs=60)
    vectors, pairs, losses = train_vectors(make_corpus([list(map(int, d)) for d in documents]), 30, settings)
    assert pairs == cooccurrence_counts(make_corpus([list(map(int, d)) for d in documents]), 30, 3).nnz
    assert losses[-1] < 0.2 * losses[0]
    unit = torch.nn.functional.normalize(vectors)
    assert unit[5] @ unit[6] > unit[5] @ unit[7] + 0.3
    assert unit[7] @ unit[8] > unit[7] @ unit[6] + 0.3


def test_vectors_are_a_function_of_the_seed() -> None:
    corpus = make_corpus([[5, 6, 7], [6, 7, 8, 5]] * 20)
    first, second, other = (train_vectors(corpus, 10, GloveConfig(8, 2, 3, seed=seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_model_folder_that_can_be_fine_tuned(small_shards: Path, tmp_path: Path) -> None:
    argv = [
        "glove",
        "--data",
        str(small_shards),
        "--out",
        str(tmp_path / "glove"),
        "--hidden-size",
        "16",
        "--epochs",
        "2",
    ]
    assert main(argv) == 0
    model = bertie.load(tmp_path / "glove")
    assert model.embed(["a text", "another"]).shape == (2, 16)
    rows = [{"text": f"text {i}", "label": str(i % 2)} for i in range(20)]
    tuned = bertie.finetune(
        {"extends": "classify", "lstm_hidden_size": 8, "training": {"steps": 2, "batch_size": 4}},
        rows, tmp_path / "glove", dev=rows,
    )  # fmt: skip
    assert len(tuned.predict(["text 1"])) == 1
    with pytest.raises(UsageError, match="already exists"):
        bertie.glove(small_shards, tmp_path / "glove")


def test_text_without_pairs_is_refused() -> None:
    with pytest.raises(UserError, match="co-occur"):
        train_vectors(make_corpus([[5], [6]]), 10, GloveConfig())


def test_counts_are_those_of_the_training_text(small_shards: Path) -> None:
    shards = open_shards(small_shards)
    counts = cooccurrence_counts(shards.train, shards.tokenizer.size, 1)
    expected = np.zeros(counts.shape)
    starts = [int(start) for start in shards.train.document_starts]
    for start, stop in itertools.pairwise(starts):
        ids, _ = shards.train.slice(start, stop)
        for a, b in itertools.pairwise(ids):
            expected[a, b] += 1
            expected[b, a] += 1
    assert np.array_equal(counts.toarray(), expected)
