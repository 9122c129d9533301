"""Randomness as a pure function of (seed, what it is for, epoch, step, …): no generator's state is ever saved."""

from __future__ import annotations

import numpy as np

# What a stream of random numbers is for. The numbers are part of what makes a run repeatable: never reuse one.
LAYOUT, PAIRS, LABELS, EVAL_LABELS, DROPOUT, WEIGHTS, EXAMPLES, SUBSET, HALVES = range(9)


def generator(seed: int, *stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, *stream])


def torch_seed(seed: int, *stream: int) -> int:
    """For torch.manual_seed: 63 bits."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1, np.uint64)[0] >> 1)
