"""Pooling: one vector from the hidden states of several tokens."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Pooling = Literal["mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""mean: the mean of the rows. cls: the first row, which is [CLS] in a whole text. max: the maximum of each dimension.
mean_sqrt_len_tokens: the sum, divided by the square root of the number of rows. weightedmean: the mean with the weights 1, 2, 3
… (Muennighoff 2022, SGPT, section 3.1.1). lasttoken: the last row. The names are from sentence-transformers."""


def pool(
    pooling: Pooling,
    x_PD: Float[Tensor, "P D"],
    group_P: Int[Tensor, " P"],
    groups: int,
    before_G: Int[Tensor, " G"] | None = None,
) -> Float[Tensor, "G D"]:
    """Pool the rows of each group.

    Args:
        pooling: The kind of pooling.
        x_PD: Hidden states.
        group_P: Number of each row's text or word, from 0 and ascending. Every group has at least one row.
        groups: Number of groups, G.
        before_G: Rows of each group that stand before those in `x_PD` and are left out: they count in the weights of
            weightedmean. None: no rows.
    """
    numbers_G = torch.arange(groups, device=group_P.device)
    if pooling == "cls":
        return x_PD[torch.searchsorted(group_P, numbers_G)]
    if pooling == "lasttoken":
        return x_PD[torch.searchsorted(group_P, numbers_G, right=True) - 1]
    if pooling == "max":
        empty_GD = x_PD.new_full((groups, x_PD.shape[1]), -math.inf)
        return empty_GD.scatter_reduce(0, group_P[:, None].expand_as(x_PD), x_PD, "amax")
    zeros_GD = x_PD.new_zeros(groups, x_PD.shape[1])
    if pooling == "weightedmean":
        starts_G = torch.searchsorted(group_P, numbers_G) - (0 if before_G is None else before_G)
        weight_P = (torch.arange(1, len(x_PD) + 1, device=group_P.device) - starts_G[group_P]).to(x_PD.dtype)
        totals_G = zeros_GD[:, 0].index_add(0, group_P, weight_P)
        return zeros_GD.index_add(0, group_P, x_PD * weight_P[:, None]) / totals_G[:, None]
    sums_GD = zeros_GD.index_add(0, group_P, x_PD)
    counts_G1 = torch.bincount(group_P, minlength=groups)[:, None]
    return sums_GD / (counts_G1 if pooling == "mean" else counts_G1.to(x_PD.dtype).sqrt())
