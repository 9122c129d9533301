"""Losses on vectors of texts equal their formulas, computed with loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bertie.base.contracts import PairTargets, Sequence, to_tensors
from bertie.model.heads.pooling_head import PoolingHead, VectorLoss
from bertie.model.losses.compared import LOSSES
from bertie.tasks.known_positives import compared, with_relation

SCALE = 3.0
TUPLES = [("a", "p", "x", "y"), ("b", "q", "z"), ("c", "r", "p"), ("a", "s", "w")]
SCORES = [(0.9, 0.2, 0.1), (0.5, 0.4), (0.3, 0.8), (0.7, 0.0)]


def case(back: bool = False) -> tuple[Tensor, PairTargets, list[list[int]]]:
    """Return vectors, targets, and for each tuple the numbers of its texts."""
    sequences, places = [], []
    for number, texts in enumerate(TUPLES):
        places.append(list(range(len(sequences), len(sequences) + len(texts))))
        for part, text in enumerate(texts):
            ids = np.array([ord(text)], np.int32)
            score = SCORES[number][part - 1] if part else None
            sequences.append(Sequence(ids, ids, ids > 0, example=number, part=part, target=score))
    texts = len(sequences)
    vectors = normalize(torch.randn(texts, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    targets = compared(with_relation(sequences), np.arange(texts), np.arange(texts), contrast=True, back=back)
    return vectors, to_tensors(targets), places


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_infonce_with_negatives_and_without_known_positives() -> None:
    vectors, targets, places = case()
    known = {"a": {"p", "s"}, "b": {"q"}, "c": {"r"}}
    expected = []
    for texts, place in zip(TUPLES, places, strict=True):
        query, own = vectors[place[0]], vectors[place[1]]
        others, seen = [own], {texts[1]}
        every = [pair for each, of in zip(TUPLES, places, strict=True) for pair in zip(each[1:], of[1:], strict=True)]
        for text, at in every:
            if text not in known[texts[0]] and text not in seen:
                others.append(vectors[at])
                seen.add(text)
        logits = SCALE * torch.stack(others) @ query
        expected.append(float(logits.logsumexp(0) - logits[0]))
    loss = LOSSES["infonce"](vectors, targets, SCALE)
    assert float(loss.total / loss.count) == pytest.approx(mean(expected))


def test_both_directions() -> None:
    """The query a is there twice, and one candidate."""
    vectors, targets, places = case(back=True)
    one = LOSSES["infonce"](vectors, case()[1], SCALE).total
    queries, positives = ([vectors[place[part]] for place in places] for part in (0, 1))
    back = []
    for i, positive in enumerate(positives):
        logits = [SCALE * positive @ queries[j] for j in range(4) if i == j or (j < 3 and TUPLES[i][0] != TUPLES[j][0])]
        own = SCALE * positive @ queries[i]
        back.append(float(torch.stack(logits).logsumexp(0) - own))
    total = LOSSES["infonce"](vectors, targets, SCALE).total
    assert float(total) == pytest.approx((float(one) + sum(back)) / 2)


def test_losses_on_scores() -> None:
    vectors, targets, places = case()
    cosines = [[float(vectors[place[0]] @ vectors[at]) for at in place[1:]] for place in places]
    margins = [
        mean([(SCALE * (c[0] - other) - (s[0] - taught)) ** 2 for other, taught in zip(c[1:], s[1:], strict=True)])
        for c, s in zip(cosines, SCORES, strict=True)
    ]
    divergences = []
    for c, s in zip(cosines, SCORES, strict=True):
        ours, theirs = (torch.tensor(x, dtype=torch.float64).log_softmax(0) for x in ([SCALE * v for v in c], list(s)))
        divergences.append(float((theirs.exp() * (theirs - ours)).sum()))
    own, gold = [c[0] for c in cosines], [s[0] for s in SCORES]
    wrong = [SCALE * (own[i] - own[j]) for i in range(4) for j in range(4) if gold[i] < gold[j]]
    expected = {
        "margin_mse": mean(margins),
        "kl": mean(divergences),
        "cosent": math.log(1 + sum(map(math.exp, wrong))),
        "mse": mean([(c - s) ** 2 for c, s in zip(own, gold, strict=True)]),
    }
    for name, value in expected.items():
        loss = LOSSES[name](vectors, targets, SCALE)
        assert float(loss.total / loss.count) == pytest.approx(value, rel=1e-5), name
        assert math.isnan(loss.hits)


def test_widths_are_averaged_and_the_scale_is_learned() -> None:
    vectors, targets, _ = case()
    head = PoolingHead("mean", VectorLoss("infonce", SCALE, learned=True, widths=(2, 4)))
    each = [LOSSES["infonce"](normalize(vectors[:, :width]), targets, SCALE).total for width in (2, 4, 6)]
    loss = head.compare(vectors.requires_grad_(), targets)
    assert loss.total.item() == pytest.approx(mean([*map(float, each)]), rel=1e-6)
    loss.total.backward()
    assert head.log_scale is not None
    assert head.log_scale.grad is not None
    assert float(head.log_scale.grad) != 0
