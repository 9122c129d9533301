"""Distances and depths in dependency trees, spanning trees, and rank correlations.

n  words of a sentence    B  sentences or layers that are computed together
"""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LENGTHS = range(5, 51)
"""Lengths of the sentences whose rank correlations count, in words (Hewitt & Manning 2019, section 4.2)."""


def tree_distances(heads: Many[int]) -> tuple[Int[np.ndarray, "n n"], Int[np.ndarray, " n"]]:
    """Return the number of arcs between each two words, and between each word and the root.

    Args:
        heads: The head of each word, -1 for the root. They form a tree.
    """
    n = len(heads)
    above = np.zeros((n, n), bool)  # above[i, a]: a is word i or one of its ancestors
    words, reached = np.arange(n), np.arange(n)
    while len(words):
        above[words, reached] = True
        reached = np.array(heads)[reached]
        words, reached = words[reached >= 0], reached[reached >= 0]
    depth = above.sum(1) - 1
    common = above.astype(int) @ above.T.astype(int) - 1  # depth of the lowest common ancestor
    return depth[:, None] + depth - 2 * common, depth


def spanning_trees(distances: Float[Tensor, "B n n"], nodes: Bool[Tensor, "B n"]) -> Int[Tensor, "B n"]:
    """Find minimum spanning trees by Prim's algorithm.

    Args:
        distances: Symmetric distances.
        nodes: The nodes to connect.

    Returns:
        For each node the one to which it was connected; -1 for the first node and others that are not connected.
    """
    rows = torch.arange(len(distances), device=distances.device)
    parent = torch.full(nodes.shape, -1, device=distances.device)
    first = nodes.int().argmax(1)
    open_ = nodes.clone()
    open_[rows, first] = False
    nearest, via = distances[rows, first].clone(), first[:, None].repeat(1, nodes.shape[1])
    for _ in range(int(nodes.sum(1).max()) - 1 if nodes.numel() else 0):
        chosen = nearest.masked_fill(~open_, torch.inf).argmin(1)
        real = open_[rows, chosen]
        parent[rows[real], chosen[real]] = via[rows[real], chosen[real]]
        open_[rows, chosen] = False
        closer = (distances[rows, chosen] < nearest) & real[:, None]
        nearest = torch.where(closer, distances[rows, chosen], nearest)
        via = torch.where(closer, chosen[:, None], via)
    return parent


def rank_correlations(x: Float[np.ndarray, "*B n"], y: Float[np.ndarray, "*B n"]) -> Float[np.ndarray, "*B"]:
    """Return Spearman's correlation of the last dimension, with mean ranks for ties. 0 if one side is constant."""
    from scipy.stats import rankdata

    ranks = [rankdata(values, axis=-1) for values in np.broadcast_arrays(x, y)]
    x, y = (rank - rank.mean(-1, keepdims=True) for rank in ranks)
    scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return np.divide((x * y).sum(-1), scale, out=np.zeros(scale.shape), where=scale > 0)
