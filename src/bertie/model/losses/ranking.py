"""Losses on the scores of the texts of each query, which a reranker computes from pairs.

S  texts, each with its query    Q  queries
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from bertie.base.contracts import Loss, RankTargets
from bertie.model.losses.compared import log_softmax_of_groups

RankingLoss = Literal["bce", "softmax", "lambda", "mse", "margin_mse"]
"""bce: each text by itself is relevant or not. softmax: the distribution over the texts of a query. lambda: pairs of texts,
weighted by what swapping them changes in nDCG (Wang et al. 2018). mse, margin_mse: the scores of a teacher, or their differences
to that of the positive."""


def ranking_loss(name: RankingLoss, logits_S1: Float[Tensor, "S 1"], targets: RankTargets) -> Loss:
    """Return the sum over queries of the mean over their texts, or for softmax and lambda of the loss of their list. It has no
    hits (NaN)."""
    logits_S = logits_S1[:, 0].to(torch.promote_types(logits_S1.dtype, torch.float32))
    score_S, group_S = targets.score, targets.label
    if name == "bce":
        each_S = F.binary_cross_entropy_with_logits(logits_S, score_S, reduction="none")
    elif name == "mse":
        each_S = (logits_S - score_S).square()
    elif name == "softmax":
        groups = int(group_S.max()) + 1
        share_S = score_S / score_S.new_zeros(groups).index_add(0, group_S, score_S)[group_S]
        list_size_S = 1 / targets.weight.clamp(min=1e-12)
        each_S = -share_S * log_softmax_of_groups(logits_S, group_S, groups) * list_size_S
    else:
        each_S = _by_pairs(name, logits_S, targets)
    total = (each_S * targets.weight).sum()
    return Loss(total, targets.weight.sum(), total.new_tensor(math.nan))


def _by_pairs(name: RankingLoss, logits_S: Tensor, targets: RankTargets) -> Float[Tensor, " S"]:
    """Return the loss of each text with the others of its query, times the number of its query's texts over what is averaged."""
    score_S, group_S = targets.score, targets.label
    size_S = torch.bincount(group_S)[group_S]
    if name == "margin_mse":  # the first text of a query is its positive
        positive_S = torch.searchsorted(group_S, group_S)
        error_S = (logits_S[positive_S] - logits_S) - (score_S[positive_S] - score_S)
        return error_S.square() * size_S / (size_S - 1).clamp(min=1)
    same_SS = group_S[:, None] == group_S
    rank_S = 1 + (same_SS & (logits_S > logits_S[:, None])).sum(1)  # of the scores as they are
    ideal_S = 1 + (same_SS & (score_S > score_S[:, None])).sum(1)
    ties_S = (same_SS & (score_S == score_S[:, None])).tril(-1).sum(1)
    best_S = score_S.clamp(min=0) / torch.log2(1.0 + ideal_S + ties_S)
    ideal_gain_S = best_S.new_zeros(len(size_S)).index_add(0, group_S, best_S)[group_S].clamp(min=1e-12)
    discount_S = 1 / torch.log2(1.0 + rank_S)
    change_SS = (score_S[:, None] - score_S).abs() * (discount_S[:, None] - discount_S).abs() / ideal_gain_S[:, None]
    better_SS = same_SS & (score_S[:, None] > score_S)
    return (F.softplus(logits_S - logits_S[:, None]) * change_SS.detach() * better_SS).sum(1) * size_S
