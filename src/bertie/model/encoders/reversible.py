"""Reversible layers: the memory of activations does not grow with depth (Gomez et al. 2017; Kitaev et al. 2020, section 3).

A layer has two streams and two branches: y₁ = x₁ + f(x₂), y₂ = x₂ + g(y₁). So x₂ = y₂ − g(y₁), x₁ = y₁ − f(x₂): the backward pass
computes the inputs of a layer from its outputs, so only the last outputs are stored.

T  packed tokens    E  size of a stream
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.random import fork_rng

Compute = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
"""Computes a branch, from its input, [T, E], and from what an earlier call returned besides its output, or None."""


@dataclass(frozen=True, eq=False)
class Branch:
    """One of the two functions of a layer."""

    compute: Compute
    """The function. What it returns besides its output is kept for the backward pass, which calls it again. Both calls must draw
    the same random numbers, or the second one fewer at the end."""
    parameters: tuple[nn.Parameter, ...]
    """The parameters that it trains."""
    seed: int | None = None
    """Seed of its random numbers, so that both calls have the same. None: it has none."""
    chunk: int = 0
    """Rows that it computes at a time, if they do not depend on each other. 0: all."""

    def pieces(self, x_TE: Tensor) -> tuple[Tensor, ...]:
        """Return the rows that are computed together."""
        return x_TE.split(self.chunk) if self.chunk else (x_TE,)

    def run(self, x_TE: Tensor, kept: Tensor | None, piece: int = 0) -> tuple[Tensor, Tensor | None]:
        """Compute one piece."""
        with nullcontext() if self.seed is None else _seeded(self.seed + piece, x_TE.device):
            return self.compute(x_TE, kept)

    def __call__(self, x_TE: Tensor) -> tuple[Float[Tensor, "T E"], Tensor | None]:
        """Return the output, and what is kept."""
        parts, kept = [], None
        for number, piece in enumerate(self.pieces(x_TE)):
            part, kept = self.run(piece, None, number)
            parts.append(part)
        return torch.cat(parts) if len(parts) > 1 else parts[0], kept


BranchPair = tuple[Branch, Branch]
"""f and g."""


def run_stored(layers: list[BranchPair], x_TE: Float[Tensor, "T E"]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both streams after each layer. Autograd, if it is on, stores what every layer needs.

    Args:
        layers: The layers.
        x_TE: Both streams before the first layer.
    """
    first_TE = second_TE = x_TE
    for f, g in layers:
        first_TE = first_TE + f(second_TE)[0]
        second_TE = second_TE + g(first_TE)[0]
        yield first_TE, second_TE


def run_reversible(layers: list[BranchPair], x_TE: Float[Tensor, "T E"]) -> tuple[Tensor, Tensor]:
    """Return both streams after the last layer. The backward pass computes the inputs of the layers again."""
    parameters = (parameter for layer in layers for branch in layer for parameter in branch.parameters)
    return _Reversible.apply(x_TE, layers, *parameters)


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TE: Tensor, layers: list[BranchPair], *_parameters: Tensor) -> tuple[Tensor, Tensor]:
        first_TE = second_TE = x_TE
        kept = []
        for f, g in layers:
            added_TE, kept_by_f = f(second_TE)
            first_TE = first_TE + added_TE
            second_TE = second_TE + g(first_TE)[0]
            kept.append(kept_by_f)
        ctx.save_for_backward(first_TE, second_TE, *kept)
        ctx.layers, ctx.autocast = layers, _autocast(x_TE.device.type)
        return first_TE, second_TE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first_TE, second_TE, *kept = ctx.saved_tensors
        d_first_TE, d_second_TE = gradients
        of_parameters: list[Tensor | None] = []
        for (f, g), kept_by_f in zip(reversed(ctx.layers), reversed(kept), strict=True):
            with ctx.autocast():
                added_TE, d_input_TE, of_g = _differentiate(g, first_TE, d_second_TE, None)
                second_TE, d_first_TE = second_TE - added_TE, d_first_TE + d_input_TE
                added_TE, d_input_TE, of_f = _differentiate(f, second_TE, d_first_TE, kept_by_f)
                first_TE, d_second_TE = first_TE - added_TE, d_second_TE + d_input_TE
            of_parameters[:0] = [*of_f, *of_g]
        return d_first_TE + d_second_TE, None, *of_parameters


def _differentiate(
    branch: Branch, x_TE: Tensor, d_output_TE: Tensor, kept: Tensor | None
) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Return the output of a branch, and the gradients of its input and of its parameters."""
    outputs, inputs = [], []
    trained = [parameter for parameter in branch.parameters if parameter.requires_grad]
    totals: list[Tensor | None] = [None for _ in trained]
    for number, (piece, d_piece) in enumerate(zip(branch.pieces(x_TE), branch.pieces(d_output_TE), strict=True)):
        with torch.enable_grad():
            source = piece.detach().requires_grad_()
            output, _ = branch.run(source, kept, number)
            gradients = torch.autograd.grad(output, (source, *trained), d_piece.to(output.dtype))
        outputs.append(output.detach())
        inputs.append(gradients[0])
        totals = [new if total is None else total + new for total, new in zip(totals, gradients[1:], strict=True)]
    by_parameter = dict(zip(trained, totals, strict=True))
    return torch.cat(outputs), torch.cat(inputs), [by_parameter.get(parameter) for parameter in branch.parameters]


def _autocast(device: str) -> Callable[[], Any]:
    """Return a context with the precision of products that is set now."""
    if device not in ("cpu", "cuda"):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers from a seed, and then continue those from before."""
    with fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
