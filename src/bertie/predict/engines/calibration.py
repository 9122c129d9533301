"""Ranges of activations for the int8 precision of the torch engine, measured on real texts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines.linears import Act, PlainLinear, Range, Weights, accept_deprecation, quantize
from bertie.predict.engines.torch_engine import PackedEncoder

VALUES_PER_CALL = 1 << 14
"""Values of a layer's input that one call keeps, evenly spaced."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Candidates for a range, relative to all values."""


def measure_ranges(encoder: TransformerEncoder, run: Callable[[torch.nn.Module], object]) -> dict[str, Range]:
    """Return the range of the inputs of each linear layer with the smallest squared error of their int8 values.

    Args:
        encoder: The encoder.
        run: Runs an encoder that it is given on the texts.
    """
    accept_deprecation()
    seen: dict[str, list[Tensor]] = {}
    run(PackedEncoder(encoder, lambda name, weights: _Observed(weights, seen.setdefault(name, [])), torch.float32))
    return {name: _best(torch.cat(values)) for name, values in seen.items()}


def _best(values: Tensor) -> Range:
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))

    def error(span: Range) -> float:
        restored = (quantize(values, span).float() - span.zero) * span.scale
        return float((restored - values).square().sum())

    return min((Range(low * share, high * share) for share in SHARES), key=error)


class _Observed:
    """A linear layer that keeps some values of its inputs: the largest, the smallest, and others at equal distances."""

    def __init__(self, weights: Weights, seen: list[Tensor]):
        self.linear = PlainLinear(weights)
        self.seen = seen

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Tensor:
        self._see(x_TI)
        return self.linear(x_TI, act)

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Tensor:
        self._see(x_TI)
        return self.linear.add(x_TI, residual_TO)

    def _see(self, x_TI: Tensor) -> None:
        values = x_TI.flatten()
        step = -(-len(values) // VALUES_PER_CALL) | 1  # odd, so that it meets all inputs
        self.seen.append(torch.cat([values[::step], values.amin()[None], values.amax()[None]]).clone())
