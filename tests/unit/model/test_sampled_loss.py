from __future__ import annotations

import pytest
import torch

from bertie.base.contracts import Targets
from bertie.model.losses.losses import vocabulary_loss
from bertie.model.losses.sampled_loss import sampled_vocabulary_loss

ENTRIES, PREDICTIONS, SIZE = 500, 40, 8


@pytest.fixture
def inputs() -> tuple[torch.Tensor, torch.nn.Parameter, Targets, torch.nn.Parameter]:
    torch.manual_seed(0)
    label = torch.randint(0, 30, (PREDICTIONS,))
    weight = (torch.arange(PREDICTIONS) % 5 > 0).float()
    x = torch.randn(PREDICTIONS, SIZE)
    matrix, bias = torch.nn.Parameter(torch.randn(ENTRIES, SIZE) / SIZE**0.5), torch.nn.Parameter(torch.randn(ENTRIES))
    return x, matrix, Targets(torch.arange(PREDICTIONS), label, weight), bias


def test_mean_of_many_draws_is_near_the_exact_loss_and_gradient(
    inputs: tuple[torch.Tensor, torch.nn.Parameter, Targets, torch.nn.Parameter],
) -> None:
    x, matrix, targets, bias = inputs
    exact = vocabulary_loss(x, matrix, targets, bias)
    [slope] = torch.autograd.grad(exact.total, matrix)
    draws, total, mean = 300, 0.0, torch.zeros_like(slope)
    for _ in range(draws):
        loss = sampled_vocabulary_loss(x, matrix, targets, bias, negatives=200)
        assert loss.count == exact.count
        total += loss.total.item() / draws
        mean += torch.autograd.grad(loss.total, matrix)[0] / draws
    assert total == pytest.approx(exact.total.item(), rel=0.01)
    assert (mean - slope).norm() < 0.1 * slope.norm()


def test_a_draw_has_gradients_for_labels_and_for_as_many_others(
    inputs: tuple[torch.Tensor, torch.nn.Parameter, Targets, torch.nn.Parameter],
) -> None:
    x, matrix, targets, bias = inputs
    loss = sampled_vocabulary_loss(x, matrix, targets, bias, negatives=100)
    [slope] = torch.autograd.grad(loss.total, bias)
    assert (slope != 0).sum() == PREDICTIONS + 100
    assert (slope[torch.cat([targets.label, bias.topk(50).indices])] != 0).all()


def test_loss_is_exact_without_gradients_and_with_all_entries(
    inputs: tuple[torch.Tensor, torch.nn.Parameter, Targets, torch.nn.Parameter],
) -> None:
    exact = vocabulary_loss(*inputs)
    assert sampled_vocabulary_loss(*inputs, negatives=ENTRIES - PREDICTIONS).total == exact.total
    with torch.no_grad():
        assert sampled_vocabulary_loss(*inputs, negatives=100).total == exact.total
