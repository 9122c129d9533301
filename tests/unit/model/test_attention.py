from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.base import runtime
from bertie.base.contracts import Ragged
from bertie.model.attention import groups as attention_groups
from bertie.model.attention import window as attention_window
from bertie.model.attention.attention import IMPLEMENTATIONS, automatic, dense, eager, fits_varlen, varlen
from bertie.model.attention.groups import MULTIPLE, _plan, grouped
from bertie.model.attention.loop import looped
from bertie.model.attention.window import FULL, Attention, AttentionInput, Pattern, alibi_slopes

ON_CPU = [attention for attention in IMPLEMENTATIONS.values() if attention is not varlen]  # varlen needs a GPU
FAST = [dense, grouped, looped]  # `automatic` chooses one of them
ALIBI = [Pattern(alibi=True), Pattern(causal=True, alibi=True)]
WINDOWS = [Pattern(*given) for given in [(False, None), (True, None), (False, 2), (True, 2), (False, 0), (True, 40)]]
PATTERNS = WINDOWS + ALIBI
RAGGED = [[1], [3, 1, 7, 2], [16, 1, 16], [9, 40, 20, 1, 38, 21]]


def ragged(lengths: list[int], limit: int = 40) -> Ragged:
    return Ragged(torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]), limit)


def qkv(
    tokens: int, dtype: torch.dtype = torch.float32, heads: int = 3, size: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    joined = torch.randn(3, tokens, heads, size, generator=generator, dtype=dtype)
    q, k, v = (x.detach().requires_grad_() for x in joined.unbind())
    return q, k, v


def formula(q: Tensor, k: Tensor, v: Tensor, pattern: Pattern) -> Tensor:
    """softmax(Q Kᵀ / √H) V of one sequence, head by head."""
    heads, slopes = [], alibi_slopes(q.shape[1])
    for n in range(q.shape[1]):
        scores = q[:, n] @ k[:, n].T / math.sqrt(q.shape[2])
        for i in range(len(q)):
            for j in range(len(q)):
                if pattern.alibi:
                    scores[i, j] -= slopes[n] * abs(i - j)
                if (pattern.causal and j > i) or (pattern.window is not None and abs(i - j) > pattern.window):
                    scores[i, j] = -math.inf
        heads.append(torch.softmax(scores, dim=1) @ v[:, n])
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("lengths", RAGGED[:3], ids=str)
def test_eager_computes_the_formula_for_each_sequence(lengths: list[int], pattern: Pattern) -> None:
    q, k, v = qkv(sum(lengths), torch.float64)
    parts = zip(*(one.split(lengths) for one in (q, k, v)), strict=True)
    expected = torch.cat([formula(*part, pattern) for part in parts])
    found = eager(AttentionInput(q, k, v, ragged(lengths), ragged(lengths), dropout=0.0, pattern=pattern))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", RAGGED, ids=str)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_implementations_agree_with_eager_forward_and_backward(
    lengths: list[int], dtype: torch.dtype, pattern: Pattern
) -> None:
    inputs = qkv(sum(lengths), dtype)
    weight = torch.randn(sum(lengths), 3, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    expected: list[Tensor] = []
    for attend in (eager, *FAST):
        output = attend(AttentionInput(*inputs, ragged(lengths), ragged(lengths), dropout=0.0, pattern=pattern))
        found = [output.detach(), *torch.autograd.grad((output * weight).sum(), inputs)]
        expected = expected or found
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("attention", FAST, ids=lambda attention: attention.__name__)
@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_implementations_agree_with_eager_for_some_query_rows(
    attention: Attention, lengths: list[tuple[int, int]]
) -> None:
    """Sequences of any length with any number of queries, including none."""
    keys = [n for n, _ in lengths]
    queries = [min(n, wanted) for n, wanted in lengths]
    if sum(queries) == 0:
        queries[0] = 1
    q, k, v = qkv(sum(keys), torch.float64)
    q = q[: sum(queries)]
    arguments = (q, k, v, ragged(queries), ragged(keys))
    torch.testing.assert_close(
        attention(AttentionInput(*arguments, dropout=0.0)), eager(AttentionInput(*arguments, dropout=0.0))
    )


@pytest.mark.parametrize("attention", FAST, ids=lambda attention: attention.__name__)
@pytest.mark.parametrize(
    ("queries", "keys", "pattern"),
    [
        ([4, 1, 3], [4, 1, 3], FULL),
        ([2, 0, 1], [3, 1, 4], FULL),
        ([1], [1], FULL),
        ([4, 1, 3], [4, 1, 3], Pattern(causal=True)),
        ([4, 1, 3], [4, 1, 3], Pattern(causal=True, window=1)),
        ([4, 1, 3], [4, 1, 3], Pattern(window=1)),
        ([4, 1, 3], [4, 1, 3], Pattern(alibi=True)),
        ([4, 1, 3], [4, 1, 3], Pattern(causal=True, alibi=True)),
    ],
)
def test_gradients_agree_with_finite_differences(
    attention: Attention, queries: list[int], keys: list[int], pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, of which `eager` draws other random numbers."""
    monkeypatch.setattr(attention_window, "BLOCK", 2)
    q, k, v = qkv(sum(keys), torch.float64, heads=2, size=3)
    q = q[: sum(queries)].detach().requires_grad_()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(0)
        options = {"dropout": 0.4, "pattern": pattern}
        return attention(AttentionInput(q, k, v, ragged(queries), ragged(keys), **options))

    assert torch.autograd.gradcheck(attend, (q, k, v), fast_mode=True)  # in random directions


@pytest.mark.parametrize("pattern", WINDOWS)
@pytest.mark.parametrize("lengths", RAGGED, ids=str)
def test_varlen_calls_the_kernel_with_the_right_arguments(
    lengths: list[int], pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel needs a GPU. Here, a function replaces it that follows torch's documentation of its arguments."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, max_q: int, max_k: int, **options: Any):
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert max(lengths) <= min(max_q, max_k)
        left, right = options.pop("window_size")
        assert not options
        parts = []
        for start, end in itertools.pairwise(cu_q.tolist()):
            ahead = torch.arange(end - start) - torch.arange(end - start)[:, None]
            hidden = ((ahead > right) & (right >= 0)) | ((-ahead > left) & (left >= 0))
            scores = torch.einsum("qnh,tnh->nqt", q[start:end], k[start:end]) / math.sqrt(q.shape[-1])
            weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
            parts.append(torch.einsum("nqt,tnh->qnh", weights, v[start:end]))
        return torch.cat(parts)

    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    arguments = (*qkv(sum(lengths), torch.float64), ragged(lengths), ragged(lengths))
    options = {"dropout": 0.0, "pattern": pattern}
    torch.testing.assert_close(
        varlen(AttentionInput(*arguments, **options)), eager(AttentionInput(*arguments, **options))
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pattern", WINDOWS)
@pytest.mark.parametrize("lengths", RAGGED, ids=str)
def test_varlen_agrees_with_eager_on_a_gpu(lengths: list[int], pattern: Pattern) -> None:
    inputs = [x.detach().cuda().bfloat16().requires_grad_() for x in qkv(sum(lengths), size=64)]
    bounds = Ragged(ragged(lengths).cu_seqlens.cuda(), 40)
    found, gradients = [], []
    for attend in (varlen, eager):
        output = attend(AttentionInput(*inputs, bounds, bounds, dropout=0.0, pattern=pattern))
        found.append(output.detach().float())
        gradients.append(torch.autograd.grad(output.float().square().sum(), inputs))
    torch.testing.assert_close(*found, atol=0.03, rtol=0.02)
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a.float(), b.float(), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("longest", [60, 250])
def test_half_precision_on_a_cpu_agrees_with_single_precision(longest: int) -> None:
    """Outputs and gradients are in half precision, and as close to fp32 as that allows."""
    lengths = ragged([longest, longest - 1], longest)
    inputs = [x.detach().bfloat16().requires_grad_() for x in qkv(2 * longest - 1)]
    exact = eager(AttentionInput(*(x.float() for x in inputs), lengths, lengths, dropout=0.0))
    with runtime.autocast("bf16", torch.device("cpu")):
        found = automatic(AttentionInput(*inputs, lengths, lengths, dropout=0.0))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, atol=0.01, rtol=0.01)
    expected = torch.autograd.grad(exact.square().sum(), inputs)
    for a, b in zip(torch.autograd.grad(found.float().square().sum(), inputs), expected, strict=True):
        torch.testing.assert_close(a, b, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_padded_queries_without_a_visible_key_change_no_gradient(dtype: torch.dtype, pattern: Pattern) -> None:
    lengths = ragged([17, 3, 38])
    inputs = [x.detach().to(dtype).requires_grad_() for x in qkv(58)]
    options = {"dropout": 0.0, "pattern": pattern}
    found = grouped(AttentionInput(*inputs, lengths, lengths, **options)).float()
    expected = eager(AttentionInput(*(x.float() for x in inputs), lengths, lengths, **options))
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    gradients = (torch.autograd.grad(output.sum(), inputs) for output in (found, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=0.03, rtol=0.03)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 128), min_size=1, max_size=40))
def test_half_precision_uses_few_shapes(lengths: list[int]) -> None:
    """Each new shape of a product costs a compilation, and memory that is never given back."""
    place, heads = ragged(lengths, 128), 4
    empty = torch.empty(sum(lengths), heads, 1, dtype=torch.bfloat16)
    plan = _plan(AttentionInput(empty, empty, empty, place, place, 0.0))
    for batch, queries, keys in plan.shapes:
        sequences = batch // heads
        assert sequences & (sequences - 1) == 0
        assert queries % MULTIPLE == keys % MULTIPLE == 0


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_the_scale_of_dropout_is_exact_in_half_precision(rate: float) -> None:
    """1 / (1 − rate) rounded to bf16 would be off by up to 0.4 %."""
    tokens, heads = 64, 800
    q, k, v = torch.zeros(tokens, heads, 4), torch.zeros(tokens, heads, 4), torch.ones(tokens, heads, 4)
    torch.manual_seed(0)
    place = ragged([tokens], tokens)
    output = grouped(AttentionInput(*(one.bfloat16() for one in (q, k, v)), place, place, dropout=rate)).double()
    deviation = math.sqrt(rate / (1 - rate) / tokens / (tokens * heads))  # of the mean
    assert output[..., 0].mean().item() == pytest.approx(1, abs=5 * deviation)


@pytest.mark.parametrize(
    ("max_weights", "sizes"), [(1, [1] * 6), (3 * 21 * 21, [1, 1, 1, 1, 2]), (3 * 2 * 40 * 40, [2, 3, 1])]
)
def test_the_size_of_groups_does_not_change_the_result(
    max_weights: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [9, 40, 20, 1, 38, 21]
    inputs, bounds = qkv(sum(lengths), torch.float64), ragged(lengths)
    expected = eager(AttentionInput(*inputs, bounds, bounds, dropout=0.0))
    monkeypatch.setattr(attention_groups, "MAX_GROUP_WEIGHTS", max_weights)
    groups = attention_groups.grid_groups(bounds.lengths.numpy(), bounds.lengths.numpy(), 3, half=False)
    assert [len(group) for group in groups] == sizes
    found = grouped(AttentionInput(*inputs, ragged(lengths), ragged(lengths), dropout=0.0))
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(output.square().sum(), inputs) for output in (found, expected))
    torch.testing.assert_close(*gradients)


def test_a_pattern_needs_few_keys_for_each_block_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_window, "BLOCK", 4)

    def blocks(pattern: Pattern) -> list[tuple[int, ...]]:
        found = [(block.queries, block.keys, block.masked) for block in pattern.blocks(10, 10)]
        return [tuple(edge for part in parts for edge in (part.start, part.stop)) for parts in found]

    assert blocks(FULL) == blocks(Pattern(alibi=True)) == [(0, 10, 0, 10, 0, 10)]
    assert blocks(Pattern(causal=True)) == [(8, 10, 0, 10, 8, 10), (4, 8, 0, 8, 4, 8), (0, 4, 0, 4, 0, 4)]
    assert blocks(Pattern(window=1)) == [(8, 10, 7, 10, 7, 10), (4, 8, 3, 9, 3, 9), (0, 4, 0, 5, 0, 5)]
    assert blocks(Pattern(causal=True, window=2)) == [(8, 10, 6, 10, 6, 10), (4, 8, 2, 8, 2, 8), (0, 4, 0, 4, 0, 4)]
    for pattern in WINDOWS:
        seen, visible = torch.zeros(10, 10, dtype=torch.int), pattern.visible(10, 10, torch.device("cpu"))
        for block in pattern.blocks(10, 10):
            seen[block.queries, block.keys] += 1
            outside = slice(block.keys.start, block.masked.start)
            assert visible is None or visible[block.queries, outside].all()
        assert seen.max() == 1
        assert visible is None or seen[visible].all()


@pytest.mark.parametrize(("attend", "dtype"), [(looped, torch.float64), (grouped, torch.bfloat16)])
@pytest.mark.parametrize("block", [1, 16, 24])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_size_of_blocks_does_not_change_the_result(
    attend: Attention, dtype: torch.dtype, block: int, pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [9, 40, 20, 1]
    inputs, bounds = [x.detach().to(dtype).requires_grad_() for x in qkv(sum(lengths))], ragged(lengths)
    expected = eager(AttentionInput(*(x.double() for x in inputs), bounds, bounds, dropout=0.0, pattern=pattern))
    monkeypatch.setattr(attention_window, "BLOCK", block)
    found = attend(AttentionInput(*inputs, ragged(lengths), ragged(lengths), dropout=0.0, pattern=pattern)).double()
    gradients = (torch.autograd.grad(output.square().sum(), inputs) for output in (found, expected))
    exactness = {"atol": 0.06, "rtol": 0.03} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(found, expected, **exactness)
    torch.testing.assert_close(*gradients, **exactness)


@pytest.mark.parametrize("attend", ON_CPU, ids=lambda attention: attention.__name__)
def test_dropout_drops_weights_and_keeps_their_mean(attend: Attention) -> None:
    """With one-hot values, the output equals the weights: uniform 1/16, a share p of them 0, the others scaled up."""
    tokens, heads, p = 16, 400, 0.3
    zeros = torch.zeros(tokens, heads, tokens)
    values = torch.eye(tokens)[:, None, :].expand(tokens, heads, tokens).contiguous()
    torch.manual_seed(0)
    weights = attend(AttentionInput(zeros, zeros, values, ragged([tokens]), ragged([tokens]), dropout=p))
    dropped = (weights == 0).float().mean().item()
    assert dropped == pytest.approx(p, abs=0.006)  # 102,400 weights
    torch.testing.assert_close(weights[weights != 0].unique(), torch.tensor([1 / tokens / (1 - p)]))


@pytest.mark.parametrize("attend", ON_CPU, ids=lambda attention: attention.__name__)
def test_queries_keys_and_values_may_be_views_of_one_tensor(attend: Attention) -> None:
    """The layer passes views, which are not contiguous."""
    joined = torch.randn(9, 3 * 3 * 4, requires_grad=True)
    q, k, v = joined.unflatten(-1, (3, 3, 4)).unbind(1)
    lengths = ragged([4, 5])
    separate = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    found, expected = (
        attend(AttentionInput(q, k, v, lengths, lengths, dropout=0.0)),
        eager(AttentionInput(*separate, lengths, lengths, dropout=0.0)),
    )
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found.square().sum(), joined)
    expected_gradients = torch.autograd.grad(expected.square().sum(), separate)
    torch.testing.assert_close(gradient.unflatten(-1, (3, 3, 4)).unbind(1), expected_gradients)


@pytest.mark.parametrize(("head_size", "fits"), [(64, True), (60, False), (256, True), (264, False)])
def test_flash_attention_has_limits(head_size: int, fits: bool) -> None:
    """Its kernels have up to 256 dimensions, in multiples of 8. `automatic` takes `dense` for others."""
    assert fits_varlen(head_size, 0.0, Pattern()) is fits
