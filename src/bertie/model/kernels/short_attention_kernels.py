"""Triton kernels of `short_attention.py`. A program computes one head of one sequence.

T  packed tokens    N  heads    H  head size    R  pairs of dimensions of a head: H / 2
L  queries at once: a power of two, at least the length of the longest sequence    K  keys at once

Queries and keys are pairs of tiles, [L, R] each: the first and the second half of a head, which rotary positions combine.
A product over H is the sum of two over R. `level` is the logarithm, to base 2, of the sum of the weights of a query, so its
attention weights are 2^(score − level). scale: 1 / √H. All sums and the softmax are fp32.
"""

from __future__ import annotations

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

LOG2_E = tl.constexpr(1.4426950408889634)
HIDDEN = tl.constexpr(-1e30)  # score of an excluded key. Rows past the end have no other, and must not become NaN.


@triton.jit
def _load(start, row, inside, column, STRIDE: tl.constexpr):
    """Load rows [len(row), len(column)], with zeros past the end of the sequence."""
    return tl.load(start + row[:, None] * STRIDE + column[None, :], mask=inside[:, None], other=0.0)


@triton.jit
def _store(start, row, inside, column, values, STRIDE: tl.constexpr):
    where = start + row[:, None] * STRIDE + column[None, :]
    tl.store(where, values.to(start.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _load_halves(start, rotation, row, inside, STRIDE: tl.constexpr, R: tl.constexpr, ROTARY: tl.constexpr):
    """Load the two halves of queries or keys, and rotate them."""
    column = tl.arange(0, R)
    first = _load(start, row, inside, column, STRIDE)
    second = _load(start + R, row, inside, column, STRIDE)
    if ROTARY:
        cos = _load(rotation, row, inside, column, 2 * R).to(tl.float32)
        sin = _load(rotation + R, row, inside, column, 2 * R).to(tl.float32)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first, second = (a * cos - b * sin).to(first.dtype), (b * cos + a * sin).to(second.dtype)
    return first, second


@triton.jit
def _store_halves(
    start, rotation, row, inside, first, second, STRIDE: tl.constexpr, R: tl.constexpr, ROTARY: tl.constexpr
):
    """Store the gradients of queries or keys before rotation. `first` and `second`: after rotation, fp32."""
    column = tl.arange(0, R)
    if ROTARY:
        cos = _load(rotation, row, inside, column, 2 * R).to(tl.float32)
        sin = _load(rotation + R, row, inside, column, 2 * R).to(tl.float32)
        first, second = first * cos + second * sin, second * cos - first * sin
    _store(start, row, inside, column, first, STRIDE)
    _store(start + R, row, inside, column, second, STRIDE)


@triton.jit
def _scores(q1, q2, k1, k2, row, key, length, scale, LEFT: tl.constexpr, RIGHT: tl.constexpr):
    """Return scale × Q Kᵀ as an exponent of 2, in fp32, without excluded keys."""
    scores = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1)))
    seen = key[None, :] < length
    if LEFT >= 0:
        seen = seen & (row[:, None] - key[None, :] <= LEFT)
    if RIGHT >= 0:
        seen = seen & (key[None, :] - row[:, None] <= RIGHT)
    return tl.where(seen, scores * (scale * LOG2_E), HIDDEN)


@triton.jit
def forward(
    qkv, rotation, cu_seqlens, mixed, level, tokens, scale,
    N: tl.constexpr, H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Compute `mixed`, [T, N, H], and `level`, [N, T], from `qkv`, [T, 3, N, H], and `rotation`, [T, H]."""
    R: tl.constexpr = H // 2
    D: tl.constexpr = N * H
    head = tl.program_id(0) % N
    sequence = tl.program_id(0) // N
    begin = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - begin
    if length <= 0:
        return
    begin = begin.to(tl.int64)
    qkv += begin * (3 * D) + head * H
    rotation += begin * H
    row = tl.arange(0, L)
    inside = row < length
    column = tl.arange(0, H)
    q1, q2 = _load_halves(qkv, rotation, row, inside, 3 * D, R, ROTARY)
    highest = tl.full([L], HIDDEN, tl.float32)
    total = tl.zeros([L], tl.float32)
    values = tl.zeros([L, H], tl.float32)
    for first in range(0, L, K):
        key = first + tl.arange(0, K)
        k1, k2 = _load_halves(qkv + D, rotation, key, key < length, 3 * D, R, ROTARY)
        v = _load(qkv + 2 * D, key, key < length, column, 3 * D)
        scores = _scores(q1, q2, k1, k2, row, key, length, scale, LEFT, RIGHT)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.dot(weights.to(v.dtype), v, values * shrink[:, None])
        highest = higher
    share = 1.0 / total
    _store(mixed + begin * D + head * H, row, inside, column, values * share[:, None], D)
    tl.store(level + head * tokens + begin + row, highest + tl.log2(total), mask=inside)


@triton.jit
def backward(
    d_mixed, mixed, level, qkv, rotation, cu_seqlens, d_qkv, tokens, scale,
    N: tl.constexpr, H: tl.constexpr, L: tl.constexpr, K: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    ROTARY: tl.constexpr,
):  # fmt: skip
    """Compute `d_qkv`, [T, 3, N, H], from `d_mixed`, [T, N, H], and what `forward` has computed."""
    R: tl.constexpr = H // 2
    D: tl.constexpr = N * H
    head = tl.program_id(0) % N
    sequence = tl.program_id(0) // N
    begin = tl.load(cu_seqlens + sequence)
    length = tl.load(cu_seqlens + sequence + 1) - begin
    if length <= 0:
        return
    begin = begin.to(tl.int64)
    qkv += begin * (3 * D) + head * H
    d_qkv += begin * (3 * D) + head * H
    mixed += begin * D + head * H
    d_mixed += begin * D + head * H
    rotation += begin * H
    row = tl.arange(0, L)
    inside = row < length
    column = tl.arange(0, H)
    q1, q2 = _load_halves(qkv, rotation, row, inside, 3 * D, R, ROTARY)
    levels = tl.load(level + head * tokens + begin + row, mask=inside, other=0.0)
    values = _load(mixed, row, inside, column, D)
    d_values = _load(d_mixed, row, inside, column, D)
    delta = tl.sum(d_values.to(tl.float32) * values.to(tl.float32), 1)
    d_q1 = tl.zeros([L, R], tl.float32)
    d_q2 = tl.zeros([L, R], tl.float32)
    for first in range(0, L, K):
        key = first + tl.arange(0, K)
        k1, k2 = _load_halves(qkv + D, rotation, key, key < length, 3 * D, R, ROTARY)
        v = _load(qkv + 2 * D, key, key < length, column, 3 * D)
        scores = _scores(q1, q2, k1, k2, row, key, length, scale, LEFT, RIGHT)
        probabilities = tl.exp2(scores - levels[:, None])
        d_v = tl.dot(tl.trans(probabilities.to(v.dtype)), d_values)
        _store(d_qkv + 2 * D, key, key < length, column, d_v, 3 * D)
        d_probabilities = tl.dot(d_values, tl.trans(v))
        d_scores = (probabilities * (d_probabilities - delta[:, None]) * scale).to(v.dtype)
        d_q1 = tl.dot(d_scores, k1, d_q1)
        d_q2 = tl.dot(d_scores, k2, d_q2)
        d_k1 = tl.dot(tl.trans(d_scores), q1)
        d_k2 = tl.dot(tl.trans(d_scores), q2)
        _store_halves(d_qkv + D, rotation, key, key < length, d_k1, d_k2, 3 * D, R, ROTARY)
    _store_halves(d_qkv, rotation, row, inside, d_q1, d_q2, 3 * D, R, ROTARY)
