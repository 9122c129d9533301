"""Attention within chunks of tokens, which are neighbors in the text or in the order of hash buckets (Kitaev et al. 2020,
section 2).

The tokens of a sequence lie in slots, in chunks of equal length. The last chunk may have empty slots. A chunk sees itself and
some chunks before and after it; the first one's neighbor before it is the last one. A sequence of one chunk sees itself only.
Sequences of a packed batch have chunks of their own, so no token sees another sequence.

In hashed attention, a token's query is also its key. Each round of hashing gives every token a bucket: the hyperplanes
nearest to its query determine it. The tokens of a sequence are sorted by bucket before they are cut into chunks, so
tokens with near queries are close. The rounds follow each other: the neighbor before the first chunk of a round is the last
one of the round before.

    T  packed tokens    S  sequences    L  slots    C  slots of a chunk    K  chunks    W  chunks that a chunk sees
    N  heads            H  head size    R  rounds of hashing    F  hyperplanes of a round
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertie.base.contracts import Ragged
from bertie.model.dropout import drop

ONLY_SELF = -1e5  # score of a token with itself in hashed attention: it attends to itself only if it sees no other
HIDDEN = -1e9  # score of a key that a query does not see
NORM_EPS = 1e-6
EMPTY = -1  # the token of an empty slot


class Chunking(NamedTuple):
    """How a layer cuts sequences into chunks."""

    length: int
    """Slots of a chunk."""
    before: int
    """Chunks before it that a chunk sees."""
    after: int
    """Chunks after it that a chunk sees."""
    rounds: int = 1
    """Rounds of hashing."""


class Chunks(NamedTuple):
    """The slots of packed sequences, and which chunks see each other."""

    token: Int[Tensor, " L"]
    """The token in each slot; `EMPTY` for none. Empty slots are the last ones of a sequence, also after sorting."""
    sequence: Int[Tensor, " L"]
    """The sequence of each slot."""
    slot: Int[Tensor, " T"]
    """The slot of each token."""
    neighbors: Int[Tensor, "RK W"]
    """The chunks that each chunk of each round sees; they are numbered round by round."""
    visible: Bool[Tensor, "RK WC"]
    """Which slots of these chunks hold tokens that the chunk may see."""
    single: Bool[Tensor, " T"]
    """Whether the sequence of each token is a single chunk, in which all rounds are equal."""


def padded_lengths(lengths_S: Int[Tensor, " S"], chunk_lengths: tuple[int, ...]) -> Int[Tensor, " S"]:
    """Return the slots of each sequence: up to the shortest chunk length as many as tokens, else a common multiple of all."""
    common = math.lcm(*chunk_lengths)
    return torch.where(lengths_S <= min(chunk_lengths), lengths_S, -(-lengths_S // common) * common)


def lay_out(ragged: Ragged, tokens: int, chunk_lengths: tuple[int, ...], chunking: Chunking) -> Chunks:
    """Return the chunks of packed sequences.

    On torch's meta device, where lengths are not known, all tokens are one sequence.

    Args:
        ragged: The sequences.
        tokens: Number of tokens, T.
        chunk_lengths: The chunk lengths of all layers, which decide the slots of a sequence.
        chunking: That of the layer.
    """
    device = ragged.cu_seqlens.device
    cu_seqlens = torch.tensor([0, tokens]) if device.type == "meta" else ragged.cu_seqlens.cpu()
    lengths_S, starts_S = cu_seqlens.diff(), cu_seqlens[:-1]
    length, rounds = chunking.length, chunking.rounds
    padded_S = padded_lengths(lengths_S, chunk_lengths)
    chunks_S = -(-padded_S // length)
    first_S, count = chunks_S.cumsum(0) - chunks_S, int(chunks_S.sum())
    owner_K = torch.repeat_interleave(torch.arange(len(lengths_S)), chunks_S)
    number_K, own_K = torch.arange(count) - first_S[owner_K], chunks_S[owner_K]
    sequence_L = owner_K.repeat_interleave(length)
    position_L = (number_K[:, None] * length + torch.arange(length)).flatten()
    filled_L = position_L < lengths_S[sequence_L]
    token_L = torch.where(filled_L, starts_S[sequence_L] + position_L, EMPTY)
    owner_T = torch.repeat_interleave(torch.arange(len(lengths_S)), lengths_S)
    slot_T = first_S[owner_T] * length + torch.arange(tokens) - starts_S[owner_T]

    offset_W = torch.arange(-chunking.before, chunking.after + 1)
    around_K1 = (rounds * own_K)[:, None]
    # As in transformers, a chunk stands for neighbors that are further away than there are chunks.
    offset_KW = offset_W.expand(count, -1).masked_fill(offset_W.abs() > around_K1, 0)
    place_RKW = ((torch.arange(rounds)[:, None] * own_K + number_K)[:, :, None] + offset_KW) % around_K1
    within_RKW = first_S[owner_K][:, None] + place_RKW % own_K[:, None]
    neighbor_KW = (place_RKW // own_K[:, None] * count + within_RKW).flatten(0, 1)
    seen_KW = ((offset_W == 0) | (padded_S[owner_K] > length)[:, None]).repeat(rounds, 1)
    visible_KC = filled_L.view(-1, length)[within_RKW.flatten(0, 1)] & seen_KW[:, :, None]
    single_T = (padded_S <= length)[owner_T]
    laid = token_L, sequence_L, slot_T, neighbor_KW, visible_KC.flatten(1), single_T
    return Chunks(*(tensor.to(device) for tensor in laid))


class SlotOrder(NamedTuple):
    """The tokens in the slots after sorting, for each head and round. Local attention has one head and one round."""

    token: Int[Tensor, "N R L"]
    """The token in each slot; `EMPTY` for none."""
    slot: Int[Tensor, "N R T"]
    """The slot of each token."""


def text_order(chunks: Chunks, heads: int) -> SlotOrder:
    """Return the order of the text, for all heads."""
    return SlotOrder(chunks.token.expand(heads, 1, -1), chunks.slot.expand(heads, 1, -1))


def hyperplanes(
    seed: int, heads: int, head_size: int, rounds: int, buckets: tuple[int, ...]
) -> Float[Tensor, "N H R F"]:
    """Draw random hyperplanes, half as many as the sum of `buckets`, for each head and round, in fp32 on the CPU.

    A seed gives the same hyperplanes as this `hash_seed` in transformers.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, head_size, rounds, sum(buckets) // 2, generator=generator, device="cpu")


def hash_buckets(
    query_NTH: Float[Tensor, "N T H"], planes_NHRF: Float[Tensor, "N H R F"], buckets: tuple[int, ...]
) -> Int[Tensor, "N R T"]:
    """Return the bucket of each query in each round (Andoni et al. 2015).

    One factor of `buckets` has as many buckets as directions: each hyperplane's normal and its opposite. A query is in the
    bucket of the nearest direction. Several factors are hashes of their own, whose combinations are the buckets.
    """
    near_NRTF = torch.einsum("nth,nhrf->nrtf", query_NTH, planes_NHRF)
    bucket_NRT, scale = torch.zeros(near_NRTF.shape[:3], dtype=torch.int64, device=query_NTH.device), 1
    for size, part in zip(buckets, near_NRTF.split([size // 2 for size in buckets], -1), strict=True):
        bucket_NRT = bucket_NRT + scale * torch.cat([part, -part], -1).argmax(-1)
        scale *= size
    return bucket_NRT


def hashed_order(bucket_NRT: Int[Tensor, "N R T"], chunks: Chunks, count: int) -> SlotOrder:
    """Sort the tokens of each sequence by bucket, then by position. count: number of buckets."""
    empty_L = chunks.token == EMPTY
    bucket_NRL = bucket_NRT.long()[:, :, chunks.token].masked_fill(empty_L, count)
    from_NRL = (chunks.sequence * (count + 1) + bucket_NRL).argsort(dim=-1, stable=True)
    numbers = torch.arange(len(empty_L), device=from_NRL.device).expand_as(from_NRL)
    to_NRL = torch.empty_like(from_NRL).scatter_(-1, from_NRL, numbers)
    return SlotOrder(chunks.token[from_NRL], to_NRL[:, :, chunks.slot])


def shared_keys(query_NTH: Float[Tensor, "N T H"]) -> Float[Tensor, "N T H"]:
    """Return the keys of hashed attention: the queries, with the root of the mean square 1."""
    return query_NTH * torch.rsqrt(query_NTH.square().mean(-1, keepdim=True) + NORM_EPS)


def attend(
    q_NTH: Float[Tensor, "N T H"],
    k_NTH: Float[Tensor, "N T H"],
    v_NTH: Float[Tensor, "N T H"],
    order: SlotOrder,
    chunks: Chunks,
    causal: bool,
    dropout: float,
    shared: bool,
) -> Float[Tensor, "N T H"]:
    """Mix the values that each token sees in the chunks of all rounds.

    Args:
        q_NTH: Queries.
        k_NTH: Keys.
        v_NTH: Values.
        order: The tokens in the slots.
        chunks: Which chunks see each other.
        causal: Whether a token sees no later one.
        dropout: Dropout probability of the attention weights.
        shared: Whether queries are keys, so that a token sees itself only if it sees no other (section 2, "causal masking
            for shared-QK attention").
    """
    asking = order.token.reshape(len(q_NTH), len(chunks.neighbors), -1)
    others = _Neighbors.apply(asking[..., None], chunks.neighbors).flatten(2).masked_fill(~chunks.visible, EMPTY)
    q, k, v = (_ToSlots.apply(x, order).view(*asking.shape, -1) for x in (q_NTH, k_NTH, v_NTH))
    k, v = (_Neighbors.apply(x, chunks.neighbors).flatten(2, 3) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    hidden = (others == EMPTY)[:, :, None]
    if causal:
        hidden = hidden | (asking[..., None] < others[:, :, None])
    scores = scores.masked_fill(hidden, HIDDEN)
    if shared:
        scores = scores.masked_fill(asking[..., None] == others[:, :, None], ONLY_SELF)
    mass = scores.logsumexp(-1, keepdim=True)
    mixed = drop((scores - mass).exp(), dropout) @ v
    mixed_NRTH = _ToTokens.apply(mixed.view(*order.token.shape, -1), order)
    if mixed_NRTH.shape[1] == 1:
        return mixed_NRTH[:, 0]
    mass_NRT1 = _ToTokens.apply(mass.view(*order.token.shape, 1), order)
    # Not softmax: a token that sees only itself has masses of -1e5, and transformers rounds the differences of such numbers.
    share_NRT1 = (mass_NRT1 - mass_NRT1.logsumexp(1, keepdim=True)).exp()
    return (mixed_NRTH * torch.where(chunks.single[:, None], 1 / share_NRT1.shape[1], share_NRT1)).sum(1)


def _slots(x: Tensor, order: SlotOrder) -> Tensor:
    """Return [N, R, L, H] of [N, T, H], or of [N, R, T, H]. Empty slots have arbitrary values."""
    heads, rounds, _ = order.token.shape
    groups = torch.arange(heads, device=x.device)[:, None, None]
    if x.ndim == 4:
        groups = groups * rounds + torch.arange(rounds, device=x.device)[:, None]
    rows = groups * x.shape[-2] + order.token.clamp(min=0)
    return x.flatten(0, -2).index_select(0, rows.flatten()).view(*rows.shape, -1)


def _tokens(x_NRLH: Tensor, order: SlotOrder) -> Tensor:
    """Return [N, R, T, H] of [N, R, L, H]."""
    heads, rounds, slots = order.token.shape
    groups = torch.arange(heads * rounds, device=x_NRLH.device).view(heads, rounds, 1)
    rows = groups * slots + order.slot
    return x_NRLH.flatten(0, 2).index_select(0, rows.flatten()).view(*rows.shape, -1)


class _ToSlots(torch.autograd.Function):
    """Tokens → slots. Its gradient is gathered by the reverse order, which avoids the slow scatter-add of indexing."""

    @staticmethod
    def forward(ctx: Any, x_NTH: Tensor, order: SlotOrder) -> Tensor:
        ctx.order = order
        return _slots(x_NTH, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _tokens(gradients[0], ctx.order).sum(1), None


class _ToTokens(torch.autograd.Function):
    """Slots → tokens, for each round."""

    @staticmethod
    def forward(ctx: Any, x_NRLH: Tensor, order: SlotOrder) -> Tensor:
        ctx.order = order
        return _tokens(x_NRLH, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = _slots(gradients[0], ctx.order)
        return gradient.masked_fill_((ctx.order.token == EMPTY)[..., None], 0), None


class _Neighbors(torch.autograd.Function):
    """Chunks [N, K, C, H] → the chunks that each one sees, [N, K, W, C, H]. Its gradient is gathered, too: each of the W is a
    permutation of the chunks."""

    @staticmethod
    def forward(ctx: Any, x_NKCH: Tensor, neighbor_KW: Tensor) -> Tensor:
        ctx.save_for_backward(neighbor_KW)
        return x_NKCH.index_select(1, neighbor_KW.flatten()).unflatten(1, neighbor_KW.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (neighbor_KW,) = ctx.saved_tensors
        parts = zip(gradients[0].unbind(2), neighbor_KW.argsort(0).unbind(1), strict=True)
        first, *rest = (part.index_select(1, back_K) for part, back_K in parts)
        return sum(rest, first), None
