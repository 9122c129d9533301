from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.base.contracts import Ragged
from bertie.model.attention import groups as attention_groups
from bertie.model.attention.groups import MULTIPLE
from bertie.model.attention.relative_attention import Keys, Stream, Terms, reach_of, relative_dense
from bertie.model.attention.relative_groups import _plan_of, relative_grouped

BOTH = [relative_dense, relative_grouped]
Attend = Callable[[Terms, tuple[Stream, ...], Keys, float], Tensor]
Counts = list[int] | None
by_implementation = pytest.mark.parametrize("attend", BOTH, ids=lambda attend: attend.__name__)


@dataclass
class Case:
    """Random inputs. Every sequence has a token of rank 0, so that every query sees a key."""

    terms: Terms
    streams: tuple[Stream, ...]
    keys: Keys

    def leaves(self, dtype: torch.dtype | None = None) -> Terms:
        return Terms(*(x.detach().to(dtype or x.dtype).requires_grad_() for x in self.terms))


def ragged(lengths: list[int]) -> Ragged:
    return Ragged(torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]), max(lengths))


def case(
    lengths: list[int],
    *counts: Counts,
    ordered: bool = True,
    segments: bool = True,
    heads: int = 3,
    size: int = 4,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """counts: for each stream, queries of each sequence, at random positions. None: every token is a query."""
    generator = torch.Generator().manual_seed(sum(lengths))
    tokens, bounds = sum(lengths), ragged(lengths)
    rank = torch.cat([torch.randperm(n, generator=generator) * ordered for n in lengths])
    segment = torch.randint(3, (tokens,), generator=generator) * segments
    streams = []
    for count in counts or (None,):
        positions = [
            torch.arange(n) if count is None else torch.randperm(n, generator=generator)[: count[i]].sort().values
            for i, n in enumerate(lengths)
        ]
        rows = torch.cat([start + part for start, part in zip(bounds.cu_seqlens, positions, strict=False)])
        asking = bounds if count is None else ragged([len(part) for part in positions])
        limit = rank[rows] if count is None else (rank[rows] - 1).clamp(min=0)
        streams.append(Stream(asking, torch.cat(positions), segment[rows], limit))
    queries = sum(len(stream.position) for stream in streams)
    shapes = [(queries, heads, size), *[(tokens, heads, size)] * 2, (2 * reach_of(bounds), heads, size)]
    shapes += [(heads, size)] * 4
    terms = Terms(*(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes))
    return Case(terms, tuple(streams), Keys(bounds, segment, rank))


def formula(terms: Terms, streams: tuple[Stream, ...], keys: Keys) -> Tensor:
    """One stream, one query and one head after the other. Keys of the same segment have the vector 0."""
    reach, outputs, before = len(terms.distance) // 2, [], 0
    for stream in streams:
        for sequence in range(len(keys.ragged.lengths)):
            start, end = keys.ragged.cu_seqlens[sequence : sequence + 2].tolist()
            for i in range(*stream.ragged.cu_seqlens[sequence : sequence + 2].tolist()):
                seen = [j for j in range(start, end) if keys.rank[j] <= stream.limit[i]]
                heads = []
                for n in range(terms.k.shape[1]):
                    q, scores = terms.q[before + i, n], []
                    for j in seen:
                        apart = int(stream.position[i]) - (j - start)
                        score = (q + terms.content_bias[n]) @ terms.k[j, n]
                        score = score + (q + terms.position_bias[n]) @ terms.distance[reach - apart, n]
                        if stream.segment[i] != keys.segment[j]:
                            score = score + (q + terms.segment_bias[n]) @ terms.other[n]
                        scores.append(score / math.sqrt(len(q)))
                    heads.append(torch.stack(scores).softmax(0) @ terms.v[seen, n])
                outputs.append(torch.stack(heads))
        before += len(stream.position)
    return torch.stack(outputs)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize(
    ("lengths", "counts"),
    [
        ([1], [None]),
        ([3, 1, 7, 2], [None]),
        ([9, 17, 12, 1], [[2, 0, 12, 1]]),
        ([4, 6], [[0, 1]]),
        ([9, 17, 1], [None, [2, 12, 0]]),
    ],
    ids=str,
)
def test_the_formula_is_computed_forward_and_backward(
    lengths: list[int], counts: list[Counts], ordered: bool, segments: bool
) -> None:
    given = case(lengths, *counts, ordered=ordered, segments=segments)
    terms = given.leaves()
    expected = formula(terms, given.streams, given.keys)
    weight = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))

    def gradients(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((output * weight).sum(), terms, allow_unused=True, materialize_grads=True)

    wanted = gradients(expected)
    for attend in BOTH:
        found = attend(terms, given.streams, given.keys, 0.0)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(gradients(found), wanted)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=6))
def test_implementations_agree_for_any_lengths(sizes: list[tuple[int, int]]) -> None:
    lengths, counts = [n for n, _ in sizes], [min(sizes) for sizes in sizes]
    counts[0] = max(counts[0], 1)
    given = case(lengths, None, counts)
    dense, grouped = (attend(given.terms, given.streams, given.keys, 0.0) for attend in BOTH)
    torch.testing.assert_close(grouped, dense)


@by_implementation
@pytest.mark.parametrize("counts", [[None], [[2, 0, 1]], [None, [2, 0, 1]]], ids=str)
def test_gradients_agree_with_finite_differences(attend: Attend, counts: list[Counts]) -> None:
    given = case([4, 1, 3], *counts, heads=2, size=3)
    terms = given.leaves()
    terms = terms._replace(distance=terms.distance[12:20].detach().requires_grad_())  # others are never used

    def attended(*leaves: Tensor) -> Tensor:
        torch.manual_seed(0)
        cut = Terms(*leaves)
        unused = cut.distance.new_zeros(12, 2, 3)
        whole = cut._replace(distance=torch.cat([unused, cut.distance, unused]))
        return attend(whole, given.streams, given.keys, 0.4)

    assert torch.autograd.gradcheck(attended, tuple(terms), fast_mode=True)  # in random directions


@by_implementation
def test_dropout_drops_weights_and_keeps_their_mean(attend: Attend) -> None:
    """With one-hot values, the output equals the weights: uniform 1/16, a share p of them 0, the others scaled up."""
    tokens, heads, p = 16, 400, 0.3
    given = case([tokens], ordered=False, heads=heads, size=tokens, dtype=torch.float32)
    terms = Terms(*(torch.zeros_like(x) for x in given.terms))
    values = torch.eye(tokens)[:, None, :].expand(tokens, heads, tokens).contiguous()
    torch.manual_seed(0)
    weights = attend(terms._replace(v=values), given.streams, given.keys, p)
    assert (weights == 0).float().mean().item() == pytest.approx(p, abs=0.006)  # 102,400 weights
    torch.testing.assert_close(weights[weights != 0].unique(), torch.tensor([1 / tokens / (1 - p)]), rtol=1e-4, atol=0)


@by_implementation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("counts", [[None], [[9, 0, 30]], [None, [9, 0, 30]]], ids=str)
def test_half_precision_agrees_with_single_precision(attend: Attend, dtype: torch.dtype, counts: list[Counts]) -> None:
    given = case([17, 3, 38], *counts, dtype=torch.float32)
    terms = given.leaves(dtype)
    exact = relative_dense(Terms(*(x.float() for x in terms)), given.streams, given.keys, 0.0)
    with torch.autocast("cpu", dtype):
        found = attend(terms, given.streams, given.keys, 0.0)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, atol=0.05, rtol=0.05)
    gradients = (torch.autograd.grad(output.float().square().sum(), terms) for output in (found, exact))
    for a, b in zip(*gradients, strict=True):
        assert (a.float() - b.float()).norm() < 0.03 * b.float().norm()


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 128), min_size=1, max_size=40))
def test_half_precision_uses_few_shapes(lengths: list[int]) -> None:
    """Each new shape of a product costs a compilation, and memory that is never given back."""
    given = case(lengths, None, [n // 6 for n in lengths], heads=2, size=1, dtype=torch.bfloat16)
    for group in _plan_of(given.streams, given.keys, given.terms.k, 0.0).groups:
        _, sequences, queries, keys = group.shape
        assert sequences & (sequences - 1) == 0
        assert queries % MULTIPLE == keys % MULTIPLE == 0


def test_the_size_of_groups_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for most in (1, 3 * 21 * 21, 1 << 19):
        monkeypatch.setattr(attention_groups, "MAX_GROUP_WEIGHTS", most)
        given = case([9, 40, 20, 1, 38, 21], None, [1, 7, 3, 0, 6, 4])
        terms = given.leaves()
        output = relative_grouped(terms, given.streams, given.keys, 0.0)
        found.append((output.detach(), *torch.autograd.grad(output.square().sum(), terms)))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_the_dense_implementation_has_shapes_without_data() -> None:
    """The estimate of memory computes on torch's meta device."""
    given = case([9, 4], None, [2, 1])

    def moved(x: Stream | Keys) -> list[Tensor | Ragged]:
        return [
            Ragged(v.cu_seqlens.to("meta"), 16) if isinstance(v, Ragged) else v.to("meta") for v in vars(x).values()
        ]

    terms = Terms(*(x.to("meta").requires_grad_() for x in given.terms))
    streams = tuple(Stream(*moved(stream)) for stream in given.streams)  # type: ignore[arg-type]
    output = relative_dense(terms, streams, Keys(*moved(given.keys)), 0.1)  # type: ignore[arg-type]
    output.sum().backward()
    assert output.shape == (16, 3, 4)
    assert terms.distance.grad is not None
