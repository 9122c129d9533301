"""Trees: distances, spanning trees, rank correlations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from scipy.stats import spearmanr
from tests.unit.inspect.conftest import random_heads

from bertie.inspect.probes.structural_probe import rank_correlations, spanning_trees, tree_distances


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_distances_are_those_of_the_graph(n: int) -> None:
    heads = random_heads(np.random.default_rng(n), n)
    graph = np.zeros((n, n))
    for word, head in enumerate(heads):
        if head >= 0:
            graph[word, head] = 1
    expected = shortest_path(graph, directed=False)
    distances, depths = tree_distances(heads)
    np.testing.assert_array_equal(distances, expected)
    np.testing.assert_array_equal(depths, expected[heads.index(-1)])


def test_spanning_trees_are_minimal_and_leave_nodes_out() -> None:
    rng = np.random.default_rng(0)
    distances = rng.random((5, 9, 9)) + 0.1
    distances = distances + distances.transpose(0, 2, 1)
    nodes = rng.random((5, 9)) < 0.7
    nodes[3] = False
    nodes[4] = np.arange(9) == 6
    parents = spanning_trees(torch.as_tensor(distances), torch.as_tensor(nodes)).numpy()
    for matrix, kept, parent in zip(distances, nodes, parents, strict=True):
        inside = np.flatnonzero(kept)
        expected = minimum_spanning_tree(matrix[np.ix_(inside, inside)]).sum() if len(inside) else 0.0
        arcs = np.flatnonzero(parent >= 0)
        assert len(arcs) == max(len(inside) - 1, 0)
        assert set(arcs) | set(parent[arcs]) <= set(inside)
        assert matrix[arcs, parent[arcs]].sum() == pytest.approx(expected)


def test_rank_correlations_are_spearmans() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (3, 2, 8)).astype(float), rng.random((2, 8))
    found = rank_correlations(x, y)
    for i in range(3):
        for j in range(2):
            assert found[i, j] == pytest.approx(np.asarray(spearmanr(x[i, j], y[j]))[0])
    assert rank_correlations(np.ones(4), np.arange(4.0)) == 0
