"""Sections of an epoch: groups of shards that are shuffled together, so that the others need not be at hand."""

from __future__ import annotations

import numpy as np

from bertie.base import seeding
from bertie.base.errors import UsageError


def sections(shard_starts: np.ndarray, most: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the shards of each section of an epoch, int64 [n], in random order.

    Args:
        shard_starts: int64 [shards + 1], as `Corpus.shard_starts`.
        most: Most tokens of a section, at least those of the largest shard; 0: one section has all shards, in their order.
        seed: Random seed.
        epoch: Number of the epoch.
    """
    sizes = np.diff(shard_starts)
    if not most or shard_starts[-1] <= most:
        return [np.arange(len(sizes))]
    order = seeding.generator(seed, seeding.SECTIONS, epoch).permutation(len(sizes))
    # Not as many as fit into each: the last section would be small, and its last rows, fewer than a step has, are not used.
    even = shard_starts[-1] / -(-shard_starts[-1] // most)
    found: list[list[int]] = [[]]
    tokens = 0
    for shard in order.tolist():
        if tokens >= even or tokens + sizes[shard] > most:
            found.append([])
            tokens = 0
        found[-1].append(shard)
        tokens += int(sizes[shard])
    return [np.array(section) for section in found]


def require_sections(shard_starts: np.ndarray, most: int, step_tokens: int) -> None:
    """Raise UsageError if a section could not have a shard, or not a step."""
    largest, where = int(np.diff(shard_starts).max()), f"training.shuffle_tokens is {most:,}"
    if most and most < largest:
        raise UsageError(f"{where}, and the largest shard has {largest:,} tokens: set it to that or more, or to 0")
    if most and most < step_tokens:
        raise UsageError(f"{where}, and a step has {step_tokens:,} tokens: set it to some hundred steps, or to 0")
