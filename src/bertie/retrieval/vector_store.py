"""Vectors that a search compares with a query: exact float vectors, and smaller codes that choose among them.

N  vectors    E  width of a vector    C  candidates
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int

from bertie.base.errors import UsageError
from bertie.checkpoints.sentence_transformers_format import Similarity
from bertie.predict.vectors import similarities

Codes = Literal["float32", "int8", "binary"]
OVERSAMPLING = 4  # candidates by codes for each vector that is wanted, whose float vectors are compared
_COSINE_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class VectorStore:
    """Vectors to search in. NaN vectors are never found."""

    floats: Float[np.ndarray, "N E"]
    """The vectors; with the cosine, of length 1. They may be mapped from disk."""
    similarity: Similarity
    codes: Codes = "float32"
    """What is compared first, in memory: float32, the vectors themselves; int8, 8 bits for a number and a scale for a vector;
    binary, the signs of the numbers."""
    small: np.ndarray | None = None
    """int8 [N, E], or the signs as uint64 [words, N]. None: the codes are the vectors."""
    scales: Float[np.ndarray, " N"] | None = None
    """The scales of int8."""

    @classmethod
    def of(cls, floats_NE: np.ndarray, similarity: Similarity, codes: Codes = "float32") -> VectorStore:
        """Return the store of vectors, with their codes.

        Raises:
            UsageError: The similarity is a distance, which codes do not keep.
        """
        if codes == "float32":
            return cls(floats_NE, similarity)
        if similarity not in ("cosine", "dot"):
            raise UsageError(
                f"--codes {codes} is for the cosine and the dot product: this model compares by {similarity}"
            )
        blocks = [_coded(floats_NE[i : i + _COSINE_ROWS], codes) for i in range(0, len(floats_NE), _COSINE_ROWS)]
        small = np.concatenate([block for block, _ in blocks])
        if codes == "binary":
            return cls(floats_NE, similarity, codes, np.ascontiguousarray(small.T))
        return cls(floats_NE, similarity, codes, small, np.concatenate([scales for _, scales in blocks]))

    def coarse(self, query_E: Float[np.ndarray, " E"]) -> Float[np.ndarray, " N"]:
        """Return the score of each vector by its codes; of binary codes, minus the number of signs that differ."""
        if self.small is None:
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
        coarse_N = torch.from_numpy(self.coarse(query_E)).nan_to_num(-torch.inf)
        several = count * (1 if self.small is None else OVERSAMPLING)
        rows_C = torch.topk(coarse_N, min(several, len(coarse_N)), sorted=False).indices.numpy()
        if len(rows_C) <= count:
            return rows_C
        return rows_C[np.argpartition(-self.exact(query_E, rows_C), count - 1)[:count]]


def _coded(floats_NE: np.ndarray, codes: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes of vectors, and their scales."""
    known_NE = np.nan_to_num(floats_NE)
    if codes == "binary":
        bits = np.packbits(known_NE > 0, axis=1)
        return np.pad(bits, ((0, 0), (0, -bits.shape[1] % 8))).view(np.uint64), np.ones(0)
    scales_N = np.maximum(np.abs(known_NE).max(1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(known_NE / scales_N[:, None]).astype(np.int8), scales_N
