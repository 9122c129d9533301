"""Sections of an epoch: groups of shards that are shuffled together, so that the others need not be at hand."""

from __future__ import annotations

import numpy as np

from bertie.base import seeding
from bertie.base.errors import UsageError


def sections(shard_starts: np.ndarray, most: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the shards of each section of an epoch, int64 [n], in random order.

    Args:
        shard_starts: int64 [shards + 1], as `Corpus.shard_starts`.
        most: Most tokens of a section, not less than the largest shard has; 0: one section has all shards, in their order.
        seed: Random seed.
        epoch: Number of the epoch.
    """
    sizes = np.diff(shard_starts)
    if not most or shard_starts[-1] <= most:
        return [np.arange(len(sizes))]
    order = seeding.generator(seed, seeding.SECTIONS, epoch).permutation(len(sizes))
    # Not as many as fit into each: the last section would be small, and its last rows, fewer than a step has, are not used.
    even = shard_starts[-1] / -(-shard_starts[-1] // most)
    groups: list[list[int]] = [[]]
    tokens = 0
    for shard in order.tolist():
        if tokens >= even or tokens + sizes[shard] > most:
            groups.append([])
            tokens = 0
        groups[-1].append(shard)
        tokens += int(sizes[shard])
    return [np.array(section) for section in groups]


def require_sections(shard_starts: np.ndarray, most: int, step_tokens: int) -> None:
    """Raise UsageError if a section could not have a shard, or not a step."""
    for size, what in ((int(np.diff(shard_starts).max()), "the largest shard"), (step_tokens, "a step")):
        if most and most < size:
            raise UsageError(
                f"training.shuffle_tokens is {most:,}, but {what} has {size:,} tokens: raise it, or set it to 0"
            )
