"""Linear layers for inference on a CPU, with weights in oneDNN's own layout: fp32, bf16 and int8.

A matrix product with such weights needs no reordering at each call. The activation function or the residual addition runs
inside it, while the result is still in the cache. Each class has two methods: `__call__(x, act)` returns act(xWᵀ + b), and
`add(x, residual)` returns xWᵀ + b + residual, which may overwrite `residual`.

T  rows    I  inputs    O  outputs
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from bertie.model.activation import activation
from bertie.model.config import Activation

Act = Literal["none"] | Activation
_FUSED = {"none": ("none", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh"), "relu": ("relu", "")}


class Weights(NamedTuple):
    """Weights of a linear layer, fp32."""

    matrix: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None


class ActivationRange(NamedTuple):
    """The interval of a layer's inputs that int8 represents. Inputs beyond it are clamped."""

    low: float
    """At most 0."""
    high: float
    """At least 0."""

    @property
    def scale(self) -> float:
        """Distance between two neighboring values."""
        return max(self.high - self.low, 1e-8) / 255

    @property
    def zero(self) -> int:
        """The integer that represents 0."""
        return min(255, max(0, round(-self.low / self.scale)))


class FusedLinear(Protocol):
    """Interface of the classes below."""

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Tensor: ...

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Tensor: ...


class PlainLinear:
    """torch's linear layer, for machines without oneDNN."""

    def __init__(self, weights: Weights):
        self.weights = weights

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Float[Tensor, "T O"]:
        x_TO = F.linear(x_TI, *self.weights)
        return x_TO if act == "none" else activation(act, x_TO)

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Float[Tensor, "T O"]:
        return self(x_TI).add_(residual_TO)


class OneDnnLinear:
    """A linear layer in fp32 or bf16."""

    def __init__(self, weights: Weights, dtype: torch.dtype):
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weights.matrix.to(dtype).contiguous(), None)
        self.bias = None if weights.bias is None else weights.bias.to(dtype)

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Float[Tensor, "T O"]:
        fused, algorithm = _FUSED[act]
        return torch.ops.mkldnn._linear_pointwise(x_TI, self.packed, self.bias, fused, [], algorithm)

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Float[Tensor, "T O"]:
        return torch.ops.mkldnn._linear_pointwise.binary(x_TI, residual_TO, self.packed, self.bias, "add")


class Int8Linear:
    """A linear layer in int8, with one scale per output for the weights and a fixed range for the inputs.

    The products are summed exactly, in int32. Inputs in floating point are quantized first.
    """

    def __init__(
        self,
        weights: Weights,
        inputs: ActivationRange,
        dtype: torch.dtype,
        outputs: ActivationRange | None = None,
        smooth_I: Float[Tensor, " I"] | None = None,
    ):
        """Quantize the weights.

        Args:
            weights: The weights.
            inputs: The range of the inputs.
            dtype: Type of the outputs of `__call__`. Those of `add` are fp32.
            outputs: If given, the outputs of `__call__` are uint8 in this range, which a next layer reads.
            smooth_I: If given, the inputs are divided by it. The weights are multiplied with it already.
        """
        self.factors = None if smooth_I is None else 1 / smooth_I
        self.inputs, self.dtype, self.outputs = inputs, dtype, outputs
        self.scales = weights.matrix.abs().amax(1).clamp(min=1e-12) / 127
        matrix = (weights.matrix / self.scales[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(matrix, None)
        self.zeros = torch.zeros(len(matrix), dtype=torch.int32)
        self.bias = None if weights.bias is None else weights.bias.float()

    def __call__(self, x_TI: Tensor, act: Act = "none") -> Float[Tensor, "T O"] | UInt8[Tensor, "T O"]:
        scale, zero, dtype = 1.0, 0, self.dtype
        if self.outputs is not None:
            scale, zero, dtype = self.outputs.scale, self.outputs.zero, torch.uint8
        fused, algorithm = _FUSED[act]
        inputs, weights = self._given(x_TI), (self.packed, self.scales, self.zeros, self.bias)
        return torch.ops.onednn.qlinear_pointwise(*inputs, *weights, scale, zero, dtype, fused, [], algorithm)

    def add(self, x_TI: Tensor, residual_TO: Tensor) -> Float[Tensor, "T O"]:
        weights, end = (self.packed, self.scales, self.zeros), ("none", [], "")
        return torch.ops.onednn.qlinear_pointwise.binary(
            *self._given(x_TI), *weights, residual_TO, self.bias, 1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, *end
        )

    def _given(self, x_TI: Tensor) -> tuple[Tensor, float, int]:
        if x_TI.dtype != torch.uint8:
            x_TI = quantize(x_TI if self.factors is None else x_TI * self.factors, self.inputs)
        return x_TI, self.inputs.scale, self.inputs.zero


def quantize(x: Tensor, span: ActivationRange) -> UInt8[Tensor, ...]:
    """Return the nearest of the 256 values of a range for each number, as their integers."""
    if not hasattr(torch, "quantize_per_tensor"):  # deprecated, but four times as fast as separate operations
        return quantize_in_steps(x, span)
    quantized = torch.quantize_per_tensor(x.float(), span.scale, span.zero, torch.quint8)
    # `int_repr` would copy the numbers, which costs more than quantizing them.
    storage: Any = quantized.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, quantized.shape, quantized.stride())


def quantize_in_steps(x: Tensor, span: ActivationRange) -> UInt8[Tensor, ...]:
    """Compute the same as `quantize` with other operations."""
    return x.float().div(span.scale).round_().add_(span.zero).clamp_(0, 255).to(torch.uint8)


def accept_deprecation() -> None:
    """Let torch say now, where nobody hears it, that `quantize_per_tensor` is deprecated. It says so once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantize(torch.zeros(1), ActivationRange(0.0, 1.0))


def has_onednn() -> bool:
    """Whether torch's operators with packed weights exist here."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
