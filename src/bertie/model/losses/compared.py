"""Losses on the vectors of texts: of queries, and of the candidates that are right or wrong for them.

B  pairs of all ranks    b  pairs of this rank    C  candidates    S  texts    D  width of a vector
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bertie.base.contracts import Loss, PairTargets, Targets
from bertie.model.losses.losses import cross_entropy, squared_error

LossName = Literal["infonce", "mse", "cosent", "margin_mse", "kl"]
"""infonce: softmax of a query's positive against the negatives. mse: squared error of the cosine. cosent: the cosines of all
pairs in the order of their scores. margin_mse: differences between the scores of positives and negatives as a teacher's. kl:
the distribution over a query's own candidates as a teacher's."""


def infonce(vectors_SD: Float[Tensor, "S D"], targets: PairTargets, scale: Tensor | float) -> Loss:
    """Return −log softmax of the scaled cosine with the own candidate among the candidates (van den Oord et al. 2018; for
    sentences, Henderson et al. 2017); with `masked_back`, the mean of this and of the same with the own query among the queries.
    """
    query_BD, candidate_CD, own = vectors_SD[targets.first], vectors_SD[targets.second], targets.own[targets.rows]
    logits_bC = (scale * query_BD[targets.rows] @ candidate_CD.T).masked_fill(targets.masked, -math.inf)
    loss = cross_entropy(logits_bC, Targets(targets.index, own, targets.weight))
    if not targets.masked_back.numel():
        return loss
    logits_bB = (scale * candidate_CD[own] @ query_BD.T).masked_fill(targets.masked_back, -math.inf)
    back = cross_entropy(logits_bB, Targets(targets.index, targets.rows, targets.weight))
    return Loss((loss.total + back.total) / 2, loss.count, loss.hits)


def mse(vectors_SD: Float[Tensor, "S D"], targets: PairTargets, scale: Tensor | float) -> Loss:  # noqa: ARG001
    """Return the squared error of the cosine of each pair."""
    score_b = targets.score[targets.own[targets.rows]]
    cosine_b1 = _own_cosines(vectors_SD, targets)[targets.rows, None]
    return squared_error(cosine_b1, Targets(targets.index, score_b, targets.weight))


def cosent(vectors_SD: Float[Tensor, "S D"], targets: PairTargets, scale: Tensor | float) -> Loss:
    """Return log(1 + Σ exp(scaled cosine of a pair − that of one with a higher score)) for the pairs of all ranks (CoSENT,
    Su 2022). It has no hits (NaN)."""
    cosine_B, score_B = scale * _own_cosines(vectors_SD, targets), targets.score[targets.own]
    differences_BB = (cosine_B[:, None] - cosine_B).masked_fill(score_B[:, None] >= score_B, -math.inf)
    loss = torch.cat([differences_BB.flatten(), differences_BB.new_zeros(1)]).logsumexp(0)
    return _without_hits(loss * targets.weight.sum(), targets)


def margin_mse(vectors_SD: Float[Tensor, "S D"], targets: PairTargets, scale: Tensor | float) -> Loss:
    """Return the mean over a query's negatives of the squared error of its margin: the scaled cosine with the positive minus that
    with the negative, compared with the difference of the teacher's scores (Hofstätter et al. 2020)."""
    cosine_C, positive_C = scale * _cosines(vectors_SD, targets), targets.own[targets.group]
    error_C = (cosine_C[positive_C] - cosine_C) - (targets.score[positive_C] - targets.score)
    negative_C = torch.arange(len(positive_C), device=positive_C.device) != positive_C
    sums_B = cosine_C.new_zeros(len(targets.first)).index_add(0, targets.group, error_C.square() * negative_C)
    counts_B = torch.zeros_like(sums_B).index_add(0, targets.group, negative_C.to(sums_B.dtype)).clamp(min=1)
    return _without_hits(((sums_B / counts_B)[targets.rows] * targets.weight).sum(), targets)


def kl(vectors_SD: Float[Tensor, "S D"], targets: PairTargets, scale: Tensor | float) -> Loss:
    """Return the divergence of the softmax over a query's own candidates, of the scaled cosines, from that of the teacher's
    scores."""
    groups = len(targets.first)
    ours_C = log_softmax_of_groups(scale * _cosines(vectors_SD, targets), targets.group, groups)
    theirs_C = log_softmax_of_groups(targets.score, targets.group, groups)
    sums_B = ours_C.new_zeros(groups).index_add(0, targets.group, theirs_C.exp() * (theirs_C - ours_C))
    return _without_hits((sums_B[targets.rows] * targets.weight).sum(), targets)


LOSSES: dict[LossName, Callable[[Tensor, PairTargets, Tensor | float], Loss]] = {
    "infonce": infonce,
    "mse": mse,
    "cosent": cosent,
    "margin_mse": margin_mse,
    "kl": kl,
}


def _cosines(vectors_SD: Tensor, targets: PairTargets) -> Float[Tensor, " C"]:
    """Return the cosine of each candidate with its own query."""
    return (vectors_SD[targets.first[targets.group]] * vectors_SD[targets.second]).sum(1)


def _own_cosines(vectors_SD: Tensor, targets: PairTargets) -> Float[Tensor, " B"]:
    return (vectors_SD[targets.first] * vectors_SD[targets.second[targets.own]]).sum(1)


def log_softmax_of_groups(x_C: Float[Tensor, " C"], group_C: Int[Tensor, " C"], groups: int) -> Float[Tensor, " C"]:
    """Return log softmax within each group."""
    peak_B = x_C.new_full((groups,), -math.inf).scatter_reduce(0, group_C, x_C.detach(), "amax")
    shifted_C = x_C - peak_B[group_C]
    return shifted_C - x_C.new_zeros(groups).index_add(0, group_C, shifted_C.exp()).log()[group_C]


def _without_hits(total: Tensor, targets: PairTargets) -> Loss:
    return Loss(total, targets.weight.sum(), total.new_tensor(math.nan))
