"""Ranges of activations for the int8 precision of the torch engine, measured on real texts.

T  rows    I  inputs    O  outputs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.transformer import TransformerEncoder
from bertie.predict.engines.linears import Act, ActivationRange, PlainLinear, Weights, accept_deprecation, quantize
from bertie.predict.engines.torch_engine import PackedEncoder

ROWS_PER_CALL = 1024
"""Rows of a layer's input that one call keeps, evenly spaced."""
MAX_ROWS = 2048
"""Rows that are kept in total, for each layer with the same weights."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Candidates for a range, relative to all values."""
SMOOTHED = ("qkv", "up")
"""Layers whose inputs come from layer normalization, in which a few dimensions are far larger than the others."""


class Seen(NamedTuple):
    """Inputs of a layer."""

    weights: Weights
    rows: list[Float[Tensor, "T I"]]


def measure(encoder: TransformerEncoder, run: Callable[[nn.Module], object]) -> dict[str, Tensor]:
    """Measure the inputs of all linear layers.

    For each layer, by its name such as "0.qkv", the result holds

    - `NAME.range`, float32 [2]: the range of the inputs with the smallest squared error of the outputs;
    - `NAME.smooth`, float32 [I], for `SMOOTHED`: by what the inputs are divided first (SmoothQuant, Xiao et al. 2023).

    Args:
        encoder: The encoder.
        run: Runs an encoder that it is given on the texts.
    """
    accept_deprecation()
    seen: dict[str, Seen] = {}
    layers = list(encoder.layers)
    most = MAX_ROWS * -(-len(layers) // len(set(layers)))  # so that all layers with the same weights are seen

    def make(name: str, weights: Weights) -> _Observed:
        # Parts of a matrix read the inputs of the whole, which comes last.
        rows = seen[name].rows if name in seen else []
        seen[name] = Seen(weights, rows)
        return _Observed(weights, rows, most)

    run(PackedEncoder(encoder, make, torch.float32))
    return {key: value for name, layer in seen.items() for key, value in _measure(name, layer, most).items()}


def _measure(name: str, seen: Seen, most: int = MAX_ROWS) -> dict[str, Tensor]:
    x_TI = torch.cat(seen.rows)[:most]
    matrix, measured = seen.weights.matrix, {}
    if name.split(".")[1] in SMOOTHED:
        smooth_I = (x_TI.abs().amax(0) / matrix.abs().amax(0).clamp(min=1e-5)).sqrt().clamp(min=1e-3)
        x_TI, matrix = x_TI / smooth_I, matrix * smooth_I
        measured[f"{name}.smooth"] = smooth_I
    return {f"{name}.range": torch.tensor(_best(x_TI, matrix)), **measured}


def _best(x_TI: Tensor, matrix: Tensor) -> ActivationRange:
    low, high = min(0.0, float(x_TI.min())), max(0.0, float(x_TI.max()))

    def error(span: ActivationRange) -> float:
        restored_TI = (quantize(x_TI, span).float() - span.zero) * span.scale
        return float(F.linear(restored_TI - x_TI, matrix).square().sum())

    return min((ActivationRange(low * share, high * share) for share in SHARES), key=error)


class _Observed:
    """A linear layer that keeps some rows of its inputs, about `most`."""

    def __init__(self, weights: Weights, rows: list[Tensor], most: int):
        self.linear = PlainLinear(weights)
        self.rows = rows
        self.most = most

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Tensor:
        self._see(x_TI)
        return self.linear(x_TI, act)

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Tensor:
        self._see(x_TI)
        return self.linear.add(x_TI, residual_TO)

    def _see(self, x_TI: Tensor) -> None:
        if sum(map(len, self.rows)) < self.most:
            self.rows.append(x_TI[:: -(-len(x_TI) // ROWS_PER_CALL)].clone())
