"""Which heads are alike: divergences between all pairs, a map in two dimensions, and clusters (Clark et al. 2019, section 6).

The distance of two heads is the root of the Jensen-Shannon divergence between their attention, averaged over tokens. With
this distance, heads are points of a Euclidean space (Fuglede and Topsøe 2004).

S  sequences of a group    L  length of the longest one, in tokens    N  heads of a layer    H  heads of all layers
K  pairs of a token and a token that it can attend to
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_samples
from torch import Tensor

from bertie.base import seeding
from bertie.inspect.attention import Group, head_names
from bertie.inspect.tables import HEAD, Table
from bertie.model.transformer import TransformerEncoder

POSITIONS = 1  # number of the random stream after seeding.INSPECT
WORK = 1 << 30  # most logarithms of a group. Over it, the divergence is computed at a random sample of tokens.
CHUNK = 1024  # pairs of tokens at once, so that the probabilities of all heads stay in the processor's cache
MOST_CLUSTERS = 8
STEPS = 300  # of SMACOF
MAP = {
    **HEAD,
    "x": "position on the map: heads with similar attention are close",
    "y": "the other coordinate",
    "cluster": "number of the cluster, from 1, the largest first",
    "nearest_layer": "layer of the head with the most similar attention",
    "nearest_head": "that head in its layer",
    "divergence": "mean Jensen-Shannon divergence from it, in nats; at most 0.69",
}
CLUSTERS = {
    "cluster": "number of the cluster, from 1, the largest first",
    "heads": "number of its heads",
    "silhouette": "how much closer its heads are to each other than to the next cluster: 1 far closer, 0 no clear boundary",
}


class HeadDivergence:
    """Sums of the Jensen-Shannon divergences between all pairs of heads. Its size does not depend on the text."""

    def __init__(self, encoder: TransformerEncoder, seed: int):
        """Start with no text.

        Args:
            encoder: The encoder whose attention is read.
            seed: Random seed of the sampled tokens.
        """
        self.encoder, self.seed, config = encoder, seed, encoder.config
        self.layers, self.per_layer = config.num_hidden_layers, config.num_attention_heads
        heads = self.layers * self.per_layer
        self.sums = np.zeros((heads, heads))
        self.tokens = 0.0
        self.groups = 0
        self.index = torch.zeros(3, 0, dtype=torch.int64)
        self.weight = 0.0
        self.collected: list[Tensor] = []

    def see(self, group: Group, layer: int, probabilities: Float[Tensor, "S N L L"]) -> None:
        """Collect the attention of one layer, counted from 0. The last layer of a group adds its divergences."""
        if layer == 0:
            self.collected = []
            self.index = self._sample(group).to(probabilities.device)
            self.groups += 1
        s, q, k = self.index
        self.collected.append(probabilities.transpose(0, 1)[:, s, q, k])
        if layer == self.layers - 1:
            self.sums += self.weight * divergences(torch.cat(self.collected))
            self.collected = []

    def mean(self) -> np.ndarray:
        """Return the mean divergence of each pair of heads in nats, float64 [H, H]. At most log 2."""
        return self.sums / self.tokens

    def tables(self) -> list[Table]:
        """Return the tables `head_map` and `clusters`."""
        divergence = self.mean()
        distance = np.sqrt(divergence)
        xy = coordinates(distance)
        cluster, silhouette = clusters(distance)
        layer, head = head_names(self.encoder)
        others = divergence + np.diag(np.full(len(divergence), np.inf))
        nearest = others.argmin(1)
        columns: dict[str, Any] = {
            **{"layer": layer, "head": head, "x": xy[:, 0], "y": xy[:, 1], "cluster": cluster},
            **{"nearest_layer": layer[nearest], "nearest_head": head[nearest], "divergence": others.min(1)},
        }
        if len(layer) == 1:  # there is no other head
            columns |= {name: [None] for name in ("nearest_layer", "nearest_head", "divergence")}
        sizes = np.bincount(cluster)[1:]
        numbers: dict[str, Any] = {"cluster": np.arange(1, len(sizes) + 1), "heads": sizes}
        numbers["silhouette"] = np.bincount(cluster, silhouette)[1:] / sizes
        return [Table("head_map", columns, MAP), Table("clusters", numbers, CLUSTERS)]

    def _sample(self, group: Group) -> Tensor:
        """Choose tokens, and return sequence, query and key of all their pairs, int64 [3, K]. Sets the weight of a token."""
        lengths = group.valid.sum(1).cpu().numpy()
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        query = np.concatenate([np.arange(length) for length in lengths])
        seen = query + 1 if self.encoder.config.causal else lengths[sequence]
        heads = len(self.sums)
        budget = max(WORK // (heads * (heads + 1) // 2), 1)
        self.weight, chosen = 1.0, np.arange(len(query))
        if seen.sum() > budget:
            shuffled = seeding.generator(self.seed, seeding.INSPECT, POSITIONS, self.groups).permutation(len(query))
            count = max(1, int(len(query) * budget / seen.sum()))
            chosen, self.weight = np.sort(shuffled[:count]), len(query) / count
        self.tokens += len(query)
        count = seen[chosen]
        key = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        pairs = [np.repeat(sequence[chosen], count), np.repeat(query[chosen], count), key]
        return torch.as_tensor(np.stack(pairs).astype(np.int64))


def divergences(attention_HK: Float[Tensor, "H K"]) -> np.ndarray:
    """Return the sum over tokens of the Jensen-Shannon divergence between each pair of heads, float64 [H, H].

    With m = p + q, the divergence of two distributions is (f(p + p) + f(q + q) - 2 f(p + q)) / 4, where f is the sum of
    m log m. It does not need to know which pairs belong to which token.

    Args:
        attention_HK: For each head, the probabilities of all tokens, one token after the other.
    """
    heads = len(attention_HK)
    sums = torch.zeros(heads, heads, dtype=torch.float64, device=attention_HK.device)
    for chunk_HK in attention_HK.split(CHUNK, 1):
        chunk_HK = chunk_HK.contiguous()
        for i in range(heads):
            total = chunk_HK[i:] + chunk_HK[i]
            sums[i, i:] += (total + 1e-30).log_().mul_(total).sum(1)  # 0 times the logarithm is 0
    own = sums.diagonal()
    upper = ((own[:, None] + own - 2 * sums) / 4).clamp(min=0).triu(1)
    return (upper + upper.T).cpu().numpy()


def coordinates(distance: np.ndarray) -> np.ndarray:
    """Place points in the plane so that their distances are close to the given ones, float64 [H, 2].

    Classical scaling gives the start. SMACOF (de Leeuw 1977) then minimizes the sum of squared errors of the distances.
    There is no random number.
    """
    n = len(distance)
    centering = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-centering @ distance**2 @ centering / 2)
    points = np.zeros((n, 2))
    for axis in range(min(2, n)):
        vector = vectors[:, -1 - axis]
        sign = np.sign(vector[np.abs(vector).argmax()])  # eigenvectors have no sign of their own
        points[:, axis] = sign * vector * np.sqrt(max(values[-1 - axis], 0))
    for _ in range(STEPS):
        between = np.linalg.norm(points[:, None] - points, axis=-1)
        ratio = np.divide(distance, between, out=np.zeros_like(distance), where=between > 1e-12)
        points = (ratio.sum(1)[:, None] * points - ratio @ points) / n
    return points


def clusters(distance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cluster points by their distances, with Ward linkage.

    The number of clusters, from 2 to MOST_CLUSTERS, has the largest mean silhouette.

    Returns:
        The number of each point's cluster, from 1, the largest cluster first, and the silhouette of each point.
    """
    n = len(distance)
    best, silhouette = np.ones(n, np.int64), np.zeros(n)
    if n < 3 or not distance.any():
        return best, silhouette
    tree, highest = linkage(squareform(distance, checks=False), "ward"), -np.inf
    for count in range(2, min(MOST_CLUSTERS, n - 1) + 1):
        found = fcluster(tree, count, "maxclust")
        if len(np.unique(found)) > 1:
            values = np.asarray(silhouette_samples(distance, found, metric="precomputed"))
            if values.mean() > highest:
                highest, best, silhouette = values.mean(), found, values
    _, first, cluster, sizes = np.unique(best, return_index=True, return_inverse=True, return_counts=True)
    rank = 1 + np.argsort(np.lexsort((first, -sizes)))
    return rank[cluster], silhouette
