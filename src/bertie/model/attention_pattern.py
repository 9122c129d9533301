"""Which keys a query attends to, and how scores depend on the distance between the two.

q, t  queries and keys of one sequence    N  heads
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Pattern(NamedTuple):
    """Restrictions of attention within a sequence. All but the default require that every token is a query."""

    causal: bool = False
    """Exclude keys at later positions."""
    window: int | None = None
    """Exclude keys more than this many positions away."""
    alibi: bool = False
    """Subtract slope × distance from the scores, with another slope for each head (Press et al. 2022). Distances are
    absolute, so the penalty is symmetric unless `causal`."""

    def visible(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "q t"] | None:
        """Return which keys of its own sequence each query attends to. None: all of them."""
        if not self.causal and self.window is None:
            return None
        distance = _distance(queries, keys, device)
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen if self.window is None else seen & (distance.abs() <= self.window)

    def bias(self, heads: int, queries: int, keys: int, like: Tensor) -> Float[Tensor, "N q t"] | None:
        """Return what to add to the scores, with the device and dtype of `like`. None: nothing."""
        if not self.alibi:
            return None
        slopes = torch.tensor(alibi_slopes(heads), device=like.device)
        return (-slopes[:, None, None] * _distance(queries, keys, like.device).abs()).to(like.dtype)


FULL = Pattern()
"""Every token attends to all tokens of its sequence."""


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8/N), 2^(-16/N), … for a power of two N.

    For another number of heads, every second slope of the next power of two follows those of the previous one, as in the
    authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return slopes + between[: heads - power]


def _distance(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
