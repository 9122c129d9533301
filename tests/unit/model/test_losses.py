from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertie.base.contracts import Loss, Targets
from bertie.model.losses import loss_slope
from bertie.model.losses.losses import cross_entropy, vocabulary_loss


def targets(labels: Tensor, weight: Tensor | None = None) -> Targets:
    return Targets(torch.arange(len(labels)), labels, torch.ones(len(labels)) if weight is None else weight)


def test_cross_entropy_is_a_weighted_sum() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 5.0]])
    loss = cross_entropy(logits, targets(torch.tensor([0, 1, 0]), torch.tensor([1.0, 0.0, 2.0])))
    first = math.log(math.exp(2) + 1 + math.e) - 2
    third = math.log(2 * math.e + math.exp(5)) - 1
    assert loss.total.item() == pytest.approx(first + 2 * third, rel=1e-6)
    assert loss.count.item() == 3
    assert loss.hits is not None
    assert loss.hits.item() == 1


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 20),
    classes=st.integers(2, 200),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_cross_entropy_agrees_with_torch(rows: int, classes: int, spread: float, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    start = (torch.randn(rows, classes, generator=generator, dtype=torch.float64) * spread).to(dtype)
    assume((start == start.amax(1, keepdim=True)).sum() == rows or not spread)  # of equal logits, none is the largest
    labels = torch.randint(classes, (rows,), generator=generator)
    weight = torch.randint(3, (rows,), generator=generator).float()
    ours, plain = start.clone().requires_grad_(), start.clone().requires_grad_()
    loss = cross_entropy(ours, targets(labels, weight))
    exact = torch.float64 if dtype == torch.float64 else torch.float32
    expected = (F.cross_entropy(plain.to(exact), labels, reduction="none") * weight).sum()
    assert loss.total.dtype == exact
    torch.testing.assert_close(loss.total, expected, rtol=1e-5, atol=1e-5)
    (3 * loss.total).backward()
    (3 * expected).backward()
    assert ours.grad is not None
    assert ours.grad.dtype == dtype
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(ours.grad, plain.grad, rtol=tolerance, atol=tolerance)
    assert torch.equal(ours, start)  # the logits are not changed
    if spread:
        assert loss.hits is not None
        assert loss.hits.item() == ((start.argmax(-1) == labels) * weight).sum().item()


def test_a_second_backward_pass_is_refused() -> None:
    """The first one overwrites the probabilities. A second one must not silently return wrong gradients."""
    logits = torch.zeros(2, 3, requires_grad=True)
    total = cross_entropy(logits, targets(torch.tensor([0, 1]))).total
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()


def half_loss(x: Tensor, matrix: Tensor, bias: Tensor, wanted: Targets) -> Loss:
    with torch.autocast("cpu", torch.bfloat16):
        return vocabulary_loss(x, matrix, wanted, bias)


@pytest.mark.parametrize("chunk", [1, 150, 1 << 19])
def test_the_vocabulary_loss_in_half_precision(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss and the gradients of input, matrix and bias are near those of fp32, in any number of chunks."""
    monkeypatch.setattr(loss_slope, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    shapes = ((7, 16), (50, 16), (50,))
    plain = [torch.randn(shape, generator=generator).bfloat16().float().requires_grad_() for shape in shapes]
    wanted = targets(torch.randint(50, (7,), generator=generator), torch.tensor([1.0, 1, 0, 2, 1, 1, 1]))
    expected, found = vocabulary_loss(*plain[:2], wanted, plain[2]), half_loss(*plain, wanted)
    assert found.total.dtype == torch.float32
    torch.testing.assert_close(found.total, expected.total, rtol=1e-2, atol=0)
    assert (found.count.item(), found.hits.item()) == (expected.count.item(), expected.hits.item())
    both = (torch.autograd.grad(loss.total / 3, plain) for loss in (found, expected))
    for a, b in zip(*both, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 0.01 * b.norm()


def test_a_label_far_below_the_largest_logit_has_a_finite_loss() -> None:
    """Its probability is 0 in fp32."""
    loss = half_loss(
        torch.ones(1, 1), torch.tensor([[0.0], [400.0], [0.0]]), torch.zeros(3), targets(torch.tensor([0]))
    )
    assert loss.total.item() == 400


def test_the_gradient_of_a_confident_label_is_not_rounded_away() -> None:
    """p − 1 is taken before it is rounded to bf16: p alone would be 1."""
    bias = torch.zeros(3, requires_grad=True)
    matrix = torch.tensor([[7.0], [0.0], [0.0]], requires_grad=True)
    half_loss(torch.ones(1, 1), matrix, bias, targets(torch.tensor([0]))).total.backward()
    assert matrix.grad is not None
    assert bias.grad is not None
    assert matrix.grad[0, 0].item() == pytest.approx(-2 / (math.exp(7) + 2), rel=0.01)
    assert bias.grad[0].item() == pytest.approx(-2 / (math.exp(7) + 2), rel=1e-3)
