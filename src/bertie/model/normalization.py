"""The normalization of hidden states."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bertie.model.config import TransformerConfig


class RmsNorm(nn.Module):
    """Division by the root of the mean square, then a factor per dimension (Zhang & Sennrich 2019), in fp32 at least."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factors to 1."""
        nn.init.ones_(self.weight)

    def forward(self, x_TD: Float[Tensor, "*T D"]) -> Float[Tensor, "*T D"]:
        exact = x_TD.to(torch.promote_types(x_TD.dtype, torch.float32))
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x_TD.dtype)


def norm_of(config: TransformerConfig, size: int) -> nn.LayerNorm | RmsNorm:
    """Return the normalization of vectors of a size, as the configuration has it."""
    if config.norm == "rms":
        return RmsNorm(size, config.layer_norm_eps)
    return nn.LayerNorm(size, eps=config.layer_norm_eps, bias=config.use_bias or config.norm_bias)
