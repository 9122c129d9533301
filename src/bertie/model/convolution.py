"""The convolution beside the first layer of DeBERTa's largest models (He et al. 2021, section 5.1.1).

T  packed tokens    Q  query rows: T, or fewer    D  hidden size    K  tokens that it sees
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Ragged
from bertie.model.activation import activation
from bertie.model.config import PoolerActivation, TransformerConfig
from bertie.model.dropout import drop


class Convolution(nn.Module):
    """A convolution over the tokens of each sequence. Beyond its ends are zeros."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        size = config.hidden_size
        self.reach = config.conv_kernel_size // 2
        self.mix = nn.Linear(config.conv_kernel_size * size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.act: PoolerActivation = config.conv_act
        self.dropout = config.hidden_dropout_prob

    def forward(
        self,
        x_TD: Float[Tensor, "T D"],
        output_QD: Float[Tensor, "Q D"],
        ragged: Ragged,
        rows: Int[Tensor, " Q"] | None,
    ) -> Float[Tensor, "Q D"]:
        """Return the normalized sum with the output of the layer.

        Args:
            x_TD: Input of the layer.
            output_QD: Its output.
            ragged: Boundaries of the sequences.
            rows: Rows of the output, in T. None: all.
        """
        owners = ragged.owners(len(x_TD))
        row = torch.arange(len(x_TD), device=x_TD.device)
        first, end = ragged.cu_seqlens[owners], ragged.cu_seqlens[owners + 1]
        if rows is not None:
            row, first, end = row[rows], first[rows], end[rows]
        seen = []
        for offset in range(-self.reach, self.reach + 1):
            inside = (row + offset >= first) & (row + offset < end)
            seen.append(x_TD[torch.where(inside, row + offset, row)] * inside[:, None])
        mixed_QD = drop(self.mix(torch.cat(seen, 1)), self.dropout, self.training)
        mixed_QD = torch.tanh(mixed_QD) if self.act == "tanh" else activation(self.act, mixed_QD)
        return self.norm(output_QD + mixed_QD)
