"""Divergences between heads, their map and their clusters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from bertie.inspect.attention import Group, read_attention, require_transformer
from bertie.inspect.heads.clusters import HeadDivergence, clusters, coordinates
from bertie.predict.load import load
from bertie.predict.predictor import Predictor
from bertie.tokenizers import truncation

TEXTS = ["the bobin", "a long one: the gat gatun in the fet fatun", "the sh the", "go"] * 3


@pytest.fixture(scope="module")
def predictor(pretrained: Path) -> Predictor:
    return load(pretrained)


def mean_divergence(predictor: Predictor, batch_tokens: int = 64) -> np.ndarray:
    sequences = truncation.encode(predictor.tokenizer, TEXTS, max_length=32)
    found = HeadDivergence(require_transformer(predictor.model.encoder), seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.inspect.attention.BATCH_TOKENS", batch_tokens)
        read_attention(predictor.model, sequences, found.see)
    return found.mean()


def slow_divergence(predictor: Predictor) -> np.ndarray:
    """Return the same by the definition, one token and one pair of heads after the other."""
    rows: dict[tuple[int, int], list[np.ndarray]] = {}

    def see(group: Group, _: int, probabilities: torch.Tensor) -> None:
        for s, index in enumerate(group.indices):
            n = len(group.sequences[s])
            for i in range(n):
                rows.setdefault((index, i), []).extend(probabilities[s, :, i, :n].double().numpy())

    read_attention(predictor.model, truncation.encode(predictor.tokenizer, TEXTS, max_length=32), see)
    total = np.zeros((8, 8))
    for heads in rows.values():
        for a, p in enumerate(heads):
            for b, q in enumerate(heads):
                m = (p + q) / 2
                total[a, b] += ((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum()) / 2
    return total / len(rows)


@pytest.mark.parametrize("batch_tokens", [16, 1000])
def test_divergences_equal_the_definition(predictor: Predictor, batch_tokens: int) -> None:
    found = mean_divergence(predictor, batch_tokens)
    expected = slow_divergence(predictor)
    assert expected.max() > 0.05
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sample_of_tokens_estimates_the_divergence_and_is_the_same_each_time(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mean_divergence(predictor)
    monkeypatch.setattr("bertie.inspect.heads.clusters.WORK", 36 * 250)  # 36 pairs of heads, 250 pairs of tokens
    sampled = mean_divergence(predictor)
    assert not np.array_equal(sampled, whole)
    assert np.array_equal(sampled, mean_divergence(predictor))
    np.testing.assert_allclose(sampled.sum(), whole.sum(), rtol=0.2)


def test_the_map_minimizes_the_stress() -> None:
    points = np.random.Generator(np.random.PCG64(0)).normal(size=(20, 5))
    distance = np.linalg.norm(points[:, None] - points, axis=-1)

    def stress(xy: np.ndarray) -> float:
        return float(((np.linalg.norm(xy[:, None] - xy, axis=-1) - distance) ** 2).sum())

    found = coordinates(distance)
    for axis in (0, 1):
        for at in (0, 7):
            moved = found.copy()
            moved[at, axis] += 0.05
            assert stress(moved) > stress(found)


def test_separate_clusters_are_found_and_numbered_by_size() -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    centers = np.repeat([[0, 0], [9, 0], [0, 9]], [4, 12, 8], axis=0)
    points = centers + rng.normal(size=(24, 2)) * 0.3
    found, silhouette = clusters(np.linalg.norm(points[:, None] - points, axis=-1))
    assert found.tolist() == [3] * 4 + [1] * 12 + [2] * 8
    assert silhouette.min() > 0.5


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_heads_without_differences_are_one_cluster(heads: int) -> None:
    distance = np.zeros((heads, heads))
    assert clusters(distance)[0].tolist() == [1] * heads
    np.testing.assert_array_equal(coordinates(distance), np.zeros((heads, 2)))
