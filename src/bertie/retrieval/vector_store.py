"""Vectors that a search compares with a query: exact float vectors, and smaller codes that choose among them.

N  vectors    E  width of a vector    C  candidates
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from bertie.base import seeding
from bertie.base.errors import UsageError, install
from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.predict.vectors import similarities

Codes = Literal["float32", "int8", "binary", "usearch"]
OVERSAMPLING = 4  # candidates by codes for each vector that is wanted, whose float vectors are compared
RECALL_QUERIES = 100
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class VectorStore:
    """Vectors to search in. NaN vectors are never found."""

    floats: Float[np.ndarray, "N E"]
    """The vectors; with the cosine, of length 1. They may be mapped from disk."""
    similarity: Similarity
    codes: Codes = "float32"
    """What is compared first, in memory: float32, the vectors themselves; int8, 8 bits for a number and a scale for a vector;
    binary, the signs of the numbers; usearch, a graph that is searched approximately (HNSW, Malkov & Yashunin 2018)."""
    small: Any = None
    """int8 [N, E], the signs as uint64 [words, N], or usearch's graph. None: the codes are the vectors."""
    scales: Float[np.ndarray, " N"] | None = None
    """The scales of int8."""

    @classmethod
    def of(
        cls, floats_NE: np.ndarray, similarity: Similarity, codes: Codes = "float32", graph: Path | None = None
    ) -> VectorStore:
        """Return the store of vectors, with their codes.

        Args:
            floats_NE: The vectors.
            similarity: How to compare them.
            codes: What is compared first.
            graph: The file of usearch. None: it is computed.

        Raises:
            UsageError: The similarity is a distance, which codes do not keep.
        """
        if codes == "float32":
            return cls(floats_NE, similarity)
        if similarity not in ("cosine", "dot"):
            raise UsageError(
                f"--codes {codes} is for the cosine and the dot product: this model compares by {similarity}"
            )
        if codes == "usearch":
            return cls(floats_NE, similarity, codes, _graph(floats_NE, graph))
        blocks = [_coded(floats_NE[i : i + _ROWS_AT_ONCE], codes) for i in range(0, len(floats_NE), _ROWS_AT_ONCE)]
        small = np.concatenate([block for block, _ in blocks])
        if codes == "binary":
            return cls(floats_NE, similarity, codes, np.ascontiguousarray(small.T))
        return cls(floats_NE, similarity, codes, small, np.concatenate([scales for _, scales in blocks]))

    def coarse(self, query_E: Float[np.ndarray, " E"]) -> Float[np.ndarray, " N"]:
        """Return the score of each vector by its codes: exact for usearch; for binary, minus the number of signs that differ."""
        if self.codes in ("float32", "usearch"):
            if self.similarity in ("cosine", "dot"):
                return (torch.from_numpy(self.floats) @ torch.from_numpy(query_E)).numpy()
            return similarities(self.similarity, query_E[None], self.floats)[0]
        small, scales = _coded(query_E[None], self.codes)
        if self.codes == "binary":
            different = np.zeros(self.small.shape[1], np.uint16)
            for word_N, word in zip(self.small, small[0], strict=True):
                different += np.bitwise_count(word_N ^ word)
            return -different.astype(np.float32)
        library: Any = torch  # its only product of int8 is not public
        whole_N = library._int_mm(torch.from_numpy(small), torch.from_numpy(self.small).T)[0]
        assert self.scales is not None
        return whole_N.numpy() * (self.scales * scales[0])

    def exact(self, query_E: Float[np.ndarray, " E"], rows_C: Int[np.ndarray, " C"]) -> Float[np.ndarray, " C"]:
        """Return the scores of some vectors by their float numbers. -inf: NaN."""
        scores_C = similarities(self.similarity, query_E[None], np.asarray(self.floats[rows_C]))[0]
        return np.where(np.isnan(scores_C), -np.inf, scores_C)

    def nearest(self, query_E: Float[np.ndarray, " E"], count: int) -> Int[np.ndarray, " C"]:
        """Return the numbers of the vectors with the highest scores, in any order; of codes, OVERSAMPLING × count are compared
        exactly."""
        several = min(count * (1 if self.codes == "float32" else OVERSAMPLING), len(self.floats))
        if self.codes == "usearch":
            rows_C = self.small.search(query_E, several).keys.astype(np.int64)
        else:
            coarse_N = torch.from_numpy(self.coarse(query_E)).nan_to_num(-torch.inf)
            rows_C = torch.topk(coarse_N, several, sorted=False).indices.numpy()
        if len(rows_C) <= count:
            return rows_C
        return rows_C[np.argpartition(-self.exact(query_E, rows_C), count - 1)[:count]]

    def recall(self) -> float:
        """Return the share of the exact first ten that `nearest` finds, for up to RECALL_QUERIES of the vectors."""
        exact, size = VectorStore(self.floats, self.similarity), min(RECALL_QUERIES, len(self.floats))
        rows = seeding.generator(0, seeding.EXAMPLES).choice(len(self.floats), size, replace=False)
        known = [np.nan_to_num(self.floats[row]) for row in rows]
        return float(np.mean([np.isin(exact.nearest(each, 10), self.nearest(each, 10)).mean() for each in known]))


def _graph(floats_NE: np.ndarray, path: Path | None) -> Any:
    """Return usearch's graph of vectors, computed or read from a file. Raises UsageError without the library."""
    try:
        from usearch.index import Index
    except ImportError as error:
        raise UsageError(f"--codes usearch needs usearch: {install('usearch')}") from error
    if path:
        return Index.restore(str(path), view=True)
    graph = Index(ndim=floats_NE.shape[1], metric="ip", dtype="f16")
    graph.add(np.arange(len(floats_NE)), np.nan_to_num(floats_NE))
    return graph


def _coded(floats_NE: np.ndarray, codes: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of vectors, and their scales."""
    known_NE = np.nan_to_num(floats_NE)
    if codes == "binary":
        bits = np.packbits(known_NE > 0, axis=1)
        return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64), np.ones(0)
    scales_N = np.maximum(np.abs(known_NE).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(known_NE / scales_N[:, None]).astype(np.int8), scales_N
