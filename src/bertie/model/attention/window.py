"""Which keys a query attends to, and how scores depend on the distance between the two.

q, t  queries and keys of one sequence    N  heads    H  head size
Q  packed queries: T, or fewer if only some rows are needed    T  packed tokens: keys and values
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.relative_bias import RelativeBias
from bertie.model.config import TransformerConfig

# Queries of a block. Smaller blocks skip more of the excluded pairs, larger ones make larger matrix products (dev/log).
BLOCK = 128


class QueryBlock(NamedTuple):
    """Consecutive queries of a sequence with the keys that they attend to. Positions count in the sequence."""

    queries: slice
    """The queries."""
    keys: slice
    """The keys that some query of the block attends to."""
    masked: slice
    """The part of these keys that the pattern excludes for some query of the block, at the end of `keys`."""


class Pattern(NamedTuple):
    """Restrictions of attention within a sequence. All but the default require that every token is a query."""

    causal: bool = False
    """Exclude keys at later positions."""
    window: int | None = None
    """Exclude keys more than this many positions away."""
    alibi: bool = False
    """Subtract slope × distance from the scores, with another slope for each head (Press et al. 2022). Distances are
    absolute, so the penalty is symmetric unless `causal`."""
    relative: RelativeBias | None = None
    """Add learned biases to the scores."""
    disentangled: bool = False
    """Scores have terms that only `disentangled.disentangled` computes."""

    @property
    def sides(self) -> tuple[int, int]:
        """How many keys a query attends to before and after its own position. −1: all."""
        reach = -1 if self.window is None else self.window
        return reach, 0 if self.causal else reach

    def visible(self, queries: int, keys: int, device: torch.device) -> Bool[Tensor, "q t"] | None:
        """Return which keys of its own sequence each query attends to. None: all of them."""
        if not self.causal and self.window is None:
            return None
        distance = _distance(queries, keys, device)
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        return seen if self.window is None else seen & (distance.abs() <= self.window)

    def blocks(self, queries: int, keys: int) -> list[QueryBlock]:
        """Split the queries of a sequence into blocks, the last one first, each with the range of keys that it needs.

        Without restrictions, there is a single block.
        """
        size = BLOCK if self.causal or self.window is not None else max(queries, 1)
        blocks = []
        for start in reversed(range(0, queries, size)):
            stop = min(start + size, queries)
            last = stop if self.causal else keys if self.window is None else min(keys, stop + self.window)
            first = 0 if self.window is None else max(0, start - self.window)
            masked = slice(start if self.window is None else first, last)
            blocks.append(QueryBlock(slice(start, stop), slice(first, last), masked))
        return blocks

    def bias(self, heads: int, queries: int, keys: int, like: Tensor) -> Float[Tensor, "N q t"] | None:
        """Return what to add to the scores, with the device and dtype of `like`. None: nothing."""
        learned = None if self.relative is None else self.relative(queries, keys).to(like.dtype)
        if not self.alibi:
            return learned
        slopes = torch.tensor(alibi_slopes(heads), device=like.device)
        fixed = (-slopes[:, None, None] * _distance(queries, keys, like.device).abs()).to(like.dtype)
        return fixed if learned is None else fixed + learned


def pattern_of(config: TransformerConfig, layer: int, relative: RelativeBias | None = None) -> Pattern:
    """Return the pattern of a layer, counted from 0. relative: the biases that all layers share."""
    return Pattern(
        config.causal, config.window(layer), config.position_embedding == "alibi", relative, config.disentangled
    )


FULL = Pattern()
"""Every token attends to all tokens of its sequence."""
CAUSAL = Pattern(causal=True)
"""Every token attends to itself and the earlier ones."""


@dataclass(frozen=True, eq=False)
class AttentionInput:
    """The inputs of attention."""

    q: Float[Tensor, "Q N H"]
    """Queries."""
    k: Float[Tensor, "T N H"]
    """Keys."""
    v: Float[Tensor, "T N H"]
    """Values."""
    queries: Ragged
    """Boundaries of the sequences among the queries."""
    keys: Ragged
    """Boundaries of the sequences among the keys."""
    dropout: float
    """Dropout probability of the attention weights."""
    pattern: Pattern = FULL
    """Which keys a query attends to."""


Attention = Callable[[AttentionInput], Tensor]
"""An implementation of attention: it returns the mixed values, [Q, N, H]."""


def by_direction(attend: Attention, x: AttentionInput) -> Float[Tensor, "T N H"]:
    """Compute the sequences that are read from the left (`Ragged.causal`) apart from the others. All tokens must be queries."""
    assert x.keys.causal is not None
    causal_T = x.keys.causal.repeat_interleave(x.keys.lengths, output_size=len(x.k))
    outputs, places = list[Tensor](), list[Tensor]()
    for chosen_S, chosen_T, causal in ((~x.keys.causal, ~causal_T, x.pattern.causal), (x.keys.causal, causal_T, True)):
        rows = chosen_T.nonzero()[:, 0]
        if len(rows):
            ragged = Ragged(F.pad(x.keys.lengths[chosen_S].cumsum(0), (1, 0)), x.keys.max_seqlen)
            parts = {name: getattr(x, name)[rows] for name in "qkv"}
            pattern = x.pattern._replace(causal=causal)
            outputs.append(attend(replace(x, **parts, queries=ragged, keys=ragged, pattern=pattern)))
            places.append(rows)
    return torch.cat(outputs)[torch.cat(places).argsort()]


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8/N), 2^(-16/N), … for a power of two N.

    For another number of heads, every second slope of the next power of two follows the slopes of the previous power, as in the
    authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return slopes + between[: heads - power]


def _distance(queries: int, keys: int, device: torch.device) -> Tensor:
    return torch.arange(queries, device=device)[:, None] - torch.arange(keys, device=device)
