"""The modules of sentence-transformers after pooling: Normalize, Dense, LayerNorm and Dropout.

S  texts    I  size of the vectors before    O  size after
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# fmt: off
DenseActivation = Literal[
    "Tanh", "Identity", "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Sigmoid",
    "LogSigmoid", "Softplus", "Softsign", "Tanhshrink", "Hardtanh", "Hardswish", "Hardsigmoid",
]
# fmt: on
"""Class of torch.nn, with its default settings."""
ACTIVATIONS: tuple[DenseActivation, ...] = get_args(DenseActivation)


@dataclass(frozen=True)
class Normalize:
    """Scale each vector to length 1."""

    def __call__(self, x_SI: Float[Tensor, "S I"]) -> Float[Tensor, "S I"]:
        return F.normalize(x_SI)


@dataclass(frozen=True)
class Dropout:
    """Without effect on predictions. It is kept for those who train the model further."""

    rate: float

    def __call__(self, x_SI: Float[Tensor, "S I"]) -> Float[Tensor, "S I"]:
        return x_SI


@dataclass(frozen=True, eq=False)
class LayerNorm:
    """Layer normalization of each vector, with torch's ε of 1e-5."""

    weight: Float[Tensor, " I"]
    bias: Float[Tensor, " I"]

    def __call__(self, x_SI: Float[Tensor, "S I"]) -> Float[Tensor, "S I"]:
        weight_I, bias_I = (parameter.to(x_SI) for parameter in (self.weight, self.bias))
        return F.layer_norm(x_SI, weight_I.shape, weight_I, bias_I)


@dataclass(frozen=True, eq=False)
class Dense:
    """A linear layer with an activation, and if it is residual, plus the vector itself or a projection of it."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None
    act: DenseActivation = "Tanh"
    residual: bool = False
    projection: Float[Tensor, "O I"] | None = None
    """Projection of a residual vector to another size."""

    def __call__(self, x_SI: Float[Tensor, "S I"]) -> Float[Tensor, "S O"]:
        bias_O = None if self.bias is None else self.bias.to(x_SI)
        x_SO = getattr(nn, self.act)()(F.linear(x_SI, self.weight.to(x_SI), bias_O))
        if not self.residual:
            return x_SO
        return x_SO + (x_SI if self.projection is None else F.linear(x_SI, self.projection.to(x_SI)))


VectorModule = Normalize | Dropout | LayerNorm | Dense


def output_width(modules: tuple[VectorModule, ...], width: int) -> int:
    """Return the size of the vectors after the modules."""
    for module in modules:
        width = len(module.weight) if isinstance(module, Dense) else width
    return width
