"""Random numbers as a pure function of a seed and a key: (seed, purpose, epoch, step, …).

No generator's state is ever saved, so a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import numpy as np

# Purposes of the random streams. Their values determine what a seed means, so never change or reuse one.
LAYOUT, PAIRS, LABELS, EVAL_LABELS, DROPOUT, WEIGHTS = range(6)
EXAMPLES, SUBSET, HALVES, BOOTSTRAP, INSPECT, GENERATION, SECTIONS, HELD_OUT = range(6, 14)


def generator(seed: int, *stream: int) -> np.random.Generator:
    """Return a NumPy generator for the key (seed, *stream). The first number of `stream` is the purpose."""
    return np.random.default_rng([seed, *stream])


def torch_seed(seed: int, *stream: int) -> int:
    """Return a seed of 63 bits for `torch.manual_seed`, for the key (seed, *stream)."""
    return int(np.random.SeedSequence([seed, *stream]).generate_state(1, np.uint64)[0] >> 1)
