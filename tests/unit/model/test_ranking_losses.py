"""Losses of rerankers equal their formulas, computed with loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bertie.base.contracts import RankTargets, to_tensors
from bertie.model.losses.ranking import ranking_loss

SCORES = [[2.0, 0.0, 1.0, 0.0], [1.0, 0.0], [1.0, 1.0, 0.0]]
LOGITS = [[0.3, -0.2, 0.9, 0.1], [-1.0, 0.5], [0.2, 0.7, 0.4]]
GROUPS = list(zip(LOGITS, SCORES, strict=True))


def found(name: str, scores: list[list[float]] = SCORES) -> float:
    sizes = np.array([len(of) for of in scores])
    group = np.repeat(np.arange(len(sizes)), sizes)
    flat = np.array([score for of in scores for score in of], np.float32)
    targets = to_tensors(RankTargets(np.arange(len(group)), group, (1 / sizes[group]).astype(np.float32), flat))
    loss = ranking_loss(name, torch.tensor([x for of in LOGITS for x in of], dtype=torch.float64)[:, None], targets)
    assert float(loss.count) == pytest.approx(len(sizes))
    return float(loss.total / loss.count)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def swaps(logits: list[float], scores: list[float]) -> float:
    """Σ over pairs of |ΔnDCG| log(1 + exp(worse − better)), as nDCG@all with linear gains changes by a swap."""
    ranks = [1 + sum(other > logit for other in logits) for logit in logits]
    ideal = sum(score / math.log2(1 + rank) for rank, score in enumerate(sorted(scores, reverse=True), 1))
    total = 0.0
    for i, better in enumerate(scores):
        for j, worse in enumerate(scores):
            if better > worse:
                change = (better - worse) * abs(1 / math.log2(1 + ranks[i]) - 1 / math.log2(1 + ranks[j])) / ideal
                total += change * math.log1p(math.exp(logits[j] - logits[i]))
    return total


def test_losses() -> None:
    ones = [[min(score, 1.0) for score in of] for of in SCORES]
    bce = [
        mean([math.log1p(math.exp(-x if y else x)) for x, y in zip(*of, strict=True)])
        for of in zip(LOGITS, ones, strict=True)
    ]
    assert found("bce", ones) == pytest.approx(mean(bce))
    assert found("mse") == pytest.approx(
        mean([mean([(x - y) ** 2 for x, y in zip(*of, strict=True)]) for of in GROUPS])
    )
    margins = [mean([((x[0] - a) - (y[0] - b)) ** 2 for a, b in zip(x[1:], y[1:], strict=True)]) for x, y in GROUPS]
    assert found("margin_mse") == pytest.approx(mean(margins))
    lists = []
    for x, y in GROUPS:
        log_p = torch.tensor(x, dtype=torch.float64).log_softmax(0)
        lists.append(-float((torch.tensor(y, dtype=torch.float64) / sum(y) * log_p).sum()))
    assert found("softmax") == pytest.approx(mean(lists))
    assert found("lambda") == pytest.approx(mean([swaps(*of) for of in GROUPS]))
