"""The baseline of a language model: token frequencies."""

from __future__ import annotations

import math

import numpy as np


def unigram_loss(train: np.ndarray, held_out: np.ndarray, special_ids: np.ndarray) -> float:
    """Return the loss on held-out text, in nats per token, of a model that knows the token counts of the training text.

    One is added to every count (Laplace smoothing), so that no token has the probability 0. Special tokens are left out.

    Args:
        train: int64 [V], occurrences of each vocabulary entry in the training text.
        held_out: int64 [V], those in the held-out text.
        special_ids: Ids of the special tokens.
    """
    train, held_out = (np.delete(counts, special_ids) for counts in (train, held_out))
    nats = np.log((train + 1).sum()) - np.log(train + 1)
    return math.fsum(held_out * nats) / max(int(held_out.sum()), 1)
