"""Pooling: one vector from the hidden states of several tokens."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Pooling = Literal["mean", "cls", "max"]
"""mean: the mean of the rows. cls: the first row, which is [CLS] in a whole text. max: the maximum of each dimension."""


def pool(pooling: Pooling, x_PD: Float[Tensor, "P D"], group_P: Int[Tensor, " P"], groups: int) -> Float[Tensor, "G D"]:
    """Pool the rows of each group.

    Args:
        pooling: The kind of pooling.
        x_PD: Hidden states.
        group_P: Number of each row's text or word, from 0 and ascending. Every group has at least one row.
        groups: Number of groups, G.
    """
    if pooling == "cls":
        return x_PD[torch.searchsorted(group_P, torch.arange(groups, device=group_P.device))]
    if pooling == "max":
        empty_GD = x_PD.new_full((groups, x_PD.shape[1]), -math.inf)
        return empty_GD.scatter_reduce(0, group_P[:, None].expand_as(x_PD), x_PD, "amax")
    sums_GD = x_PD.new_zeros(groups, x_PD.shape[1]).index_add(0, group_P, x_PD)
    return sums_GD / torch.bincount(group_P, minlength=groups)[:, None]
