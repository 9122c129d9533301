"""Structural probes (Hewitt & Manning 2019): does a linear map of hidden states show the dependency tree?

The distance probe trains a matrix B so that |B (h_i - h_j)|² is the number of arcs between words i and j. The depth probe
trains B so that |B h_i|² is the number of arcs between word i and the root. All layers are trained at once.

S  sentences    P  places    D  hidden size    R  rank    layers  the embeddings and every layer
n  words of a sentence    B  sentences or layers that are computed together
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from bertie.base import seeding
from bertie.inspect.intervals import UnitSums, meaning_of_interval, ratio, resample_alone, with_interval
from bertie.inspect.probes.probe_data import StateScale, WordBatch
from bertie.inspect.tables import Table
from bertie.inspect.treebank import ParsedSentence

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


WEIGHTS = 12  # random stream of the purpose INSPECT
LEARNING_RATE = 1e-3
CHAIN = "right-branching chain"
UNDIRECTED, DISTANCE, ROOT, DEPTH = MEASURES = ("uuas", "distance_spearman", "root_accuracy", "depth_spearman")


class StructuralProbes(nn.Module):
    """A distance probe and a depth probe for every layer."""

    def __init__(self, scale: StateScale, rank: int, seed: int, name: str, control: bool = False):
        """Create the probes.

        Args:
            scale: Scale of the hidden states.
            rank: Rows of B; at most the hidden size.
            seed: Random seed of the initial weights.
            name: Name of the model in the table.
            control: The model is a control: leave out the chain, which uses no model.
        """
        super().__init__()
        layers, *_, size = scale.deviation.shape
        rank = min(rank, size)
        rng = seeding.generator(seed, seeding.INSPECT, WEIGHTS)
        initial = rng.normal(0, (2 / (size * rank)) ** 0.5, (2, layers, size, rank))  # |B h|² starts near 2
        self.maps = nn.Parameter(torch.as_tensor(initial, dtype=torch.float32, device=scale.deviation.device))
        self.learning_rates = [(list(self.parameters()), LEARNING_RATE)]
        self._deviation = scale.deviation
        self._name = name
        self._counts = [TreeCounts() for _ in range(layers)]
        self._chain = [] if control else [TreeCounts()]

    def predict(self, batch: WordBatch) -> tuple[Float[Tensor, "layers S P P"], Float[Tensor, "layers S P"]]:
        """Return the predicted distances and depths of all places."""
        states = batch.states / self._deviation
        distance, depth = (torch.einsum("lspd,ldr->lspr", states, matrix) for matrix in self.maps)
        squares = distance.square().sum(-1)
        products = distance @ distance.transpose(2, 3)
        return (squares[..., None] + squares[:, :, None] - 2 * products).clamp(min=0), depth.square().sum(-1)

    def loss(self, batch: WordBatch) -> Tensor:
        """Return the mean absolute errors: the mean over the words or pairs of a sentence, then over the sentences."""
        distances, depths = self.predict(batch)
        words = batch.words.float()
        gold_distances, gold_depths = (gold.to(words.device) for gold in _gold(batch.sentences, words.shape[1]))
        weight = words / words.sum(1, keepdim=True).clamp(min=1) / len(words)
        pairs = words[:, :, None] * weight[:, None] / words.sum(1)[:, None, None].clamp(min=1)
        errors = ((distances - gold_distances).abs() * pairs).sum((1, 2, 3))
        return (errors + ((depths - gold_depths).abs() * weight).sum((1, 2))).sum()

    def test(self, batch: WordBatch) -> None:
        """Count the right arcs, roots and rank correlations of every layer, and of the chain."""
        distances, depths = self.predict(batch)
        places = torch.arange(batch.valid.shape[1], device=distances.device, dtype=distances.dtype)
        chain = (places[:, None] - places).abs().expand(distances.shape[1:]), places.expand(depths.shape[1:])
        scored = batch.words & ~batch.punctuation
        for counts, distance, depth in zip(self._counts, distances, depths, strict=True):
            counts.add(batch, scored, distance, depth)
        for counts in self._chain:
            counts.add(batch, scored, *chain)

    def tables(self) -> list[Table]:
        """Return `structural_probe`: a row for every layer and one for the chain."""
        rows = [
            *({"model": self._name, "layer": i, **counts.summary()} for i, counts in enumerate(self._counts)),
            *({"model": CHAIN, "layer": None, **counts.summary()} for counts in self._chain),
        ]
        return [Table.of_rows("structural_probe", rows, _MEANING)]


@dataclass(eq=False)
class TreeCounts:
    """Counts right arcs and roots, and sums rank correlations, per sentence."""

    numbers: list[int] = field(default_factory=list)
    """Numbers of the sentences."""
    rows: list[list[float]] = field(default_factory=list)
    """Of each sentence: right arcs, arcs, right root, 1, sum of the distance correlations, words, depth correlation."""

    def add(self, batch: WordBatch, scored: Tensor, distances: Tensor, depths: Tensor) -> None:
        """Compare predicted distances [S, P, P] and depths [S, P] with the trees. `scored`: the words that count."""
        parents = spanning_trees(distances, scored).cpu().numpy()
        roots = depths.masked_fill(~scored, torch.inf).argmin(1).tolist()
        words, counted = batch.words.cpu().numpy(), scored.cpu().numpy()
        distance, depth = distances.double().cpu().numpy(), depths.double().cpu().numpy()
        for s, sentence in enumerate(batch.sentences):
            heads = np.array([0, *(head + 1 for head in sentence.heads)])
            children = [w for w in np.flatnonzero(counted[s]).tolist() if heads[w] > 0 and counted[s, heads[w]]]
            arcs = {frozenset((w, int(heads[w]))) for w in children}
            named = {frozenset((w, p)) for w, p in enumerate(parents[s].tolist()) if p >= 0}
            correlations = 0.0, 0, 0.0
            present = np.flatnonzero(words[s])
            if len(present) in LENGTHS:
                square, gold_square = np.ix_(present, present), np.ix_(present - 1, present - 1)
                gold_distance, gold_depth = tree_distances(sentence.heads)
                by_word = rank_correlations(distance[s][square], gold_distance[gold_square])
                by_depth = rank_correlations(depth[s][present], gold_depth[present - 1])
                correlations = float(by_word.sum()), len(present), float(by_depth)
            has_root = bool(counted[s].any())
            right_root = has_root and heads[roots[s]] == 0
            self.numbers.append(batch.numbers[s])
            self.rows.append([len(arcs & named), len(arcs), right_root, has_root, *correlations])

    def summary(self) -> dict[str, float]:
        """Return the measures with their intervals. Rank correlations are averaged by length, then over the lengths."""
        rows = np.array(self.rows, float).reshape(-1, 7)
        lengths = rows[:, 5].astype(int)
        by_length = np.zeros((len(rows), len(LENGTHS), 4))
        inside = np.flatnonzero(lengths)
        by_length[inside, lengths[inside] - LENGTHS.start] = np.insert(rows[inside, 4:], 3, 1, axis=1)
        terms = np.concatenate([rows[:, :4], by_length.reshape(len(rows), -1)], 1)
        sums = resample_alone(UnitSums(np.array(self.numbers, int), terms))
        distance, words, depth, sentences = sums[:, 4:].reshape(len(sums), len(LENGTHS), 4).transpose(2, 0, 1)
        return {
            **with_interval(UNDIRECTED, ratio(sums[:, 0], sums[:, 1])),
            **with_interval(DISTANCE, _mean(ratio(distance, words))),
            **with_interval(ROOT, ratio(sums[:, 2], sums[:, 3])),
            **with_interval(DEPTH, _mean(ratio(depth, sentences))),
        }


def _mean(values: Float[np.ndarray, "samples lengths"]) -> Float[np.ndarray, " samples"]:
    """Return the mean over the lengths that occur."""
    return ratio(np.nansum(values, 1), np.isfinite(values).sum(1))


def _gold(sentences: Many[ParsedSentence], places: int) -> tuple[Tensor, Tensor]:
    """Return the distances [S, P, P] and depths [S, P] of the trees, with 0 elsewhere."""
    distances = np.zeros((len(sentences), places, places), np.float32)
    depths = np.zeros((len(sentences), places), np.float32)
    for s, sentence in enumerate(sentences):
        inside = slice(1, len(sentence.words) + 1)
        distances[s, inside, inside], depths[s, inside] = tree_distances(sentence.heads)
    return torch.as_tensor(distances), torch.as_tensor(depths)


_WHAT = {
    UNDIRECTED: "share of the arcs, without direction and without punctuation, in the minimum spanning tree of the "
    "predicted distances (UUAS)",
    DISTANCE: "Spearman's correlation of predicted and true distances from each word: mean over the words of sentences of "
    "the same length, then over the lengths 5 to 50",
    ROOT: "share of the sentences whose root has the smallest predicted depth of all words but punctuation",
    DEPTH: "Spearman's correlation of predicted and true depths in a sentence: mean over sentences of the same length, "
    "then over the lengths 5 to 50",
}
_MEANING = {
    "model": f"the model, an untrained one of the same shape, or the {CHAIN}",
    "layer": "layer, from 1; 0: the embeddings; empty: no layer",
    **{
        key: meaning
        for name, what in _WHAT.items()
        for key, meaning in {name: what, **meaning_of_interval(f"{name}_")}.items()
    },
}
