from __future__ import annotations

import math
from collections.abc import Sequence as Many

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention.lsh_attention import (
    EMPTY,
    Chunking,
    Chunks,
    attend,
    hash_buckets,
    hashed_order,
    hyperplanes,
    lay_out,
    padded_lengths,
    shared_keys,
    text_order,
)

LENGTHS = (2, 4, 5, 11, 8)
HEADS, SIZE, CHUNK, ROUNDS = 2, 3, 4, 2


def ragged(lengths: Many[int]) -> Ragged:
    return Ragged(torch.tensor([0, *np.cumsum(lengths)]), 64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def chunks_of(lengths: Many[int], chunking: Chunking) -> Chunks:
    return lay_out(ragged(lengths), sum(lengths), (chunking.length,), chunking)


def by_hand(q: Tensor, k: Tensor, v: Tensor, buckets: Tensor | None, chunking: Chunking, causal: bool) -> np.ndarray:
    """One sequence and one head, one query after another: lists of positions, sorted by bucket and cut into chunks.

    q, k, v: [n, H]. buckets: [R, n]; None: local attention. The chunks of all rounds form a ring.
    """
    n = len(q)
    padded = n if n <= chunking.length else -(-n // chunking.length) * chunking.length
    chunks: list[list[int]] = []
    for own in [None] if buckets is None else buckets.tolist():
        order = list(range(n)) if own is None else sorted(range(n), key=lambda i: (own[i], i))
        order += [EMPTY] * (padded - n)
        chunks += [order[start : start + chunking.length] for start in range(0, padded, chunking.length)]
    rounds = 1 if buckets is None else len(buckets)
    outputs, masses = np.zeros((rounds, n, v.shape[1])), np.zeros((rounds, n))
    per_round = len(chunks) // rounds
    offsets = range(-chunking.before, chunking.after + 1) if per_round > 1 else [0]
    for number, chunk in enumerate(chunks):
        keys = [key for offset in offsets for key in chunks[(number + offset) % len(chunks)] if key != EMPTY]
        for query in (each for each in chunk if each != EMPTY):
            seen = [key for key in keys if key <= query or not causal]
            if buckets is not None:
                seen = [key for key in seen if key != query] or [query]
            scores = np.array([float(q[query] @ k[key]) / math.sqrt(q.shape[1]) for key in seen])
            masses[number // per_round, query] = np.log(np.exp(scores).sum())
            if seen == [query] and buckets is not None:
                masses[number // per_round, query] = -1e5
            weights = np.exp(scores) / np.exp(scores).sum()
            outputs[number // per_round, query] = sum(w * v[key].numpy() for w, key in zip(weights, seen, strict=True))
    shares = np.exp(masses - masses.max(0))
    shares /= shares.sum(0)
    return (shares[:, :, None] * outputs).sum(0)


@pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
@pytest.mark.parametrize("hashed", [False, True], ids=["local", "hashed"])
def test_attention_by_hand(hashed: bool, causal: bool) -> None:
    chunking = Chunking(CHUNK, 1, 0 if causal else 1, ROUNDS if hashed else 1)
    tokens = sum(LENGTHS)
    q, k, v = (random(HEADS, tokens, SIZE, seed=seed) for seed in range(3))
    buckets = torch.randint(0, 4, (HEADS, ROUNDS, tokens), generator=torch.Generator().manual_seed(3))
    chunks = chunks_of(LENGTHS, chunking)
    order = hashed_order(buckets, chunks, 4) if hashed else text_order(chunks, HEADS)
    if hashed:
        k = shared_keys(q)
        torch.testing.assert_close(k.square().mean(-1), torch.ones_like(k[..., 0]), atol=1e-3, rtol=0)
    found = attend(q, k, v, order, chunks, causal, 0.0, shared=hashed)
    start = 0
    for n in LENGTHS:
        own = slice(start, start + n)
        for head in range(HEADS):
            of_head = buckets[head, :, own] if hashed else None
            expected = by_hand(q[head, own], k[head, own], v[head, own], of_head, chunking, causal)
            np.testing.assert_allclose(found[head, own].numpy(), expected, atol=1e-9)
        start += n


@pytest.mark.parametrize("hashed", [False, True], ids=["local", "hashed"])
def test_gradients_are_those_of_differences(hashed: bool) -> None:
    lengths = (3, 9)
    chunking = Chunking(4, 1, 1, 2 if hashed else 1)
    chunks = chunks_of(lengths, chunking)
    buckets = torch.randint(0, 4, (HEADS, 2, 12), generator=torch.Generator().manual_seed(3))
    order = hashed_order(buckets, chunks, 4) if hashed else text_order(chunks, HEADS)
    inputs = [random(HEADS, 12, SIZE, seed=seed).requires_grad_() for seed in range(3)]

    def compute(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, order, chunks, False, 0.0, shared=hashed)

    assert torch.autograd.gradcheck(compute, inputs, fast_mode=True)  # in random directions


def test_a_token_is_in_the_bucket_of_the_nearest_direction() -> None:
    query = random(HEADS, 20, SIZE)
    for factors in ((6,), (2, 4), (4, 2, 6)):
        planes = hyperplanes(3, HEADS, SIZE, ROUNDS, factors).double()
        assert planes.shape == (HEADS, SIZE, ROUNDS, sum(factors) // 2)
        found = hash_buckets(query, planes, factors)
        for head, turn, token in np.ndindex(HEADS, ROUNDS, 20):
            expected, scale, start = 0, 1, 0
            for factor in factors:
                near = [float(query[head, token] @ planes[head, :, turn, start + i]) for i in range(factor // 2)]
                expected += scale * int(np.argmax([*near, *(-each for each in near)]))
                scale, start = scale * factor, start + factor // 2
            assert found[head, turn, token] == expected
        assert found.max() < math.prod(factors)
        assert len(found.unique()) > 2


def test_tokens_are_sorted_by_bucket_and_then_by_position() -> None:
    chunks = chunks_of((5, 3), Chunking(4, 1, 0))
    assert chunks.token.tolist() == [0, 1, 2, 3, 4, *[EMPTY] * 3, 5, 6, 7, EMPTY]
    order = hashed_order(torch.tensor([[[2, 0, 2, 1, 0, 1, 0, 1]]]), chunks, 3)
    by_slot = order.token[0, 0].tolist()
    assert by_slot == [1, 4, 3, 0, 2, *[EMPTY] * 3, 6, 5, 7, EMPTY]
    assert [by_slot[slot] for slot in order.slot[0, 0].tolist()] == list(range(8))


def test_sequences_longer_than_a_chunk_fill_a_multiple_of_all_chunk_lengths() -> None:
    lengths = torch.tensor([1, 4, 5, 12, 13, 24])
    assert padded_lengths(lengths, (4, 6)).tolist() == [1, 4, 12, 12, 24, 24]
    assert padded_lengths(lengths, (8,)).tolist() == [1, 4, 5, 16, 16, 24]


def test_hyperplanes_are_those_of_torch_with_this_seed() -> None:
    state = torch.get_rng_state()
    found = hyperplanes(9, 2, 3, 2, (4, 2))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(9)
    assert torch.equal(found, torch.randn(2, 3, 2, 3))
