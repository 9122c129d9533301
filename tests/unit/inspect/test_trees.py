"""Trees: distances, spanning trees, rank correlations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import minimum_spanning_tree, shortest_path
from scipy.stats import spearmanr

from bertie.inspect.probes.structural_probe import rank_correlations, spanning_trees, tree_distances
from bertie.inspect.treebank import ParsedSentence


def random_tree(rng: np.random.Generator, n: int) -> list[int]:
    """Return heads of a random tree: every word of a random order hangs on an earlier one."""
    order, heads = rng.permutation(n), np.full(n, -1)
    for place in range(1, n):
        heads[order[place]] = order[rng.integers(place)]
    return heads.tolist()


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_distances_are_those_of_the_graph(n: int) -> None:
    heads = random_tree(np.random.default_rng(n), n)
    graph = np.zeros((n, n))
    for word, head in enumerate(heads):
        if head >= 0:
            graph[word, head] = 1
    expected = shortest_path(graph, directed=False)
    distances, depths = tree_distances(heads)
    np.testing.assert_array_equal(distances, expected)
    np.testing.assert_array_equal(depths, expected[heads.index(-1)])


@pytest.mark.parametrize(
    ("heads", "expected"),
    [([-1], True), ([1, -1], True), ([-1, -1], False), ([-1, 0, -1, 2], False), ([-1, 0, 1, 2], True)],
)
def test_trees_have_one_root(heads: list[int], expected: bool) -> None:
    """Cycles do not get this far: see `test_a_cycle_is_named_by_its_first_word_and_the_others_remain`."""
    words = ("w",) * len(heads)
    assert ParsedSentence(words, words, tuple(heads), words, "s").is_tree is expected


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
