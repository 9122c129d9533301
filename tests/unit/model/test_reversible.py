from __future__ import annotations

import torch
from torch import Tensor, nn

from bertie.model.encoders.reversible import Branch, run_reversible, run_stored


def branch(size: int, seed: int | None = None, chunk: int = 0) -> Branch:
    linear = nn.Linear(size, size).double()

    def compute(x_TE: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """Multiply by random numbers of the seed, and by others that the first call draws and keeps."""
        noise = 1.0 if seed is None else torch.rand_like(x_TE)
        factor = torch.rand_like(x_TE[0]) if kept is None else kept
        return torch.tanh(linear(x_TE)) * factor * noise, factor

    return Branch(compute, tuple(linear.parameters()), seed, chunk)


def gradients(outputs: tuple[Tensor, Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    first, second = outputs
    weights = torch.arange(first.numel(), dtype=torch.float64).view_as(first)
    return torch.autograd.grad((first.sin() * weights).sum() + second.square().sum(), inputs)


def test_gradients_and_outputs_are_those_of_stored_layers() -> None:
    torch.manual_seed(0)
    layers = [(branch(4, seed=2 * n), branch(4, seed=2 * n + 1)) for n in range(5)]
    x = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    inputs = [x, *(parameter for f, g in layers for parameter in (*f.parameters, *g.parameters))]
    torch.manual_seed(1)  # what is kept
    *_, stored = run_stored(layers, x)
    expected = gradients(stored, inputs)
    torch.manual_seed(1)
    outputs = run_reversible(layers, x)
    torch.manual_seed(2)  # the backward pass draws nothing that the forward pass did not
    for found, correct in zip((*outputs, *gradients(outputs, inputs)), (*stored, *expected), strict=True):
        assert correct.abs().max() > 1e-3
        torch.testing.assert_close(found, correct, atol=1e-9, rtol=0)


def test_rows_in_chunks_give_the_same_gradients() -> None:
    torch.manual_seed(0)
    f, whole = branch(4, seed=1), branch(4)
    ones = torch.ones(4, dtype=torch.float64)

    def with_ones(x_TE: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        return whole.compute(x_TE, ones)[0], None

    x, results = torch.randn(7, 4, dtype=torch.float64, requires_grad=True), []
    for chunk in (0, 3):
        layers = [(f, Branch(with_ones, whole.parameters, None, chunk))]
        torch.manual_seed(1)
        results.append(gradients(run_reversible(layers, x), [x, *f.parameters, *whole.parameters]))
    for found, correct in zip(*results, strict=True):
        torch.testing.assert_close(found, correct, atol=1e-12, rtol=0)


def test_frozen_parameters_get_no_gradient_and_random_numbers_continue() -> None:
    torch.manual_seed(0)
    layers = [(branch(4, seed=1), branch(4, seed=2))]
    for parameter in layers[0][0].parameters:
        parameter.requires_grad_(False)
    x = torch.randn(7, 4, dtype=torch.float64)
    state = torch.get_rng_state()
    first, second = run_reversible(layers, x)
    assert torch.equal(torch.get_rng_state(), state)
    (first.sum() + second.sum()).backward()
    assert all(parameter.grad is None for parameter in layers[0][0].parameters)
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in layers[0][1].parameters)


def test_only_the_outputs_and_what_is_kept_are_stored() -> None:
    """The bytes that autograd saves do not grow with the number of layers, except for what branches keep."""
    stored = []
    for count in (2, 12):
        torch.manual_seed(0)
        layers = [(branch(4), branch(4)) for _ in range(count)]
        x, saved = torch.randn(64, 4, dtype=torch.float64, requires_grad=True), []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor, saved=saved: saved.append(tensor), lambda _: None):
            run_reversible(layers, x)
        stored.append(sum(tensor.numel() for tensor in saved))
    assert stored == [2 * 64 * 4 + 2 * 4, 2 * 64 * 4 + 12 * 4]
