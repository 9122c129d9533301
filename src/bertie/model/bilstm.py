"""A bidirectional LSTM over packed sequences.

torch's own bidirectional LSTM for sequences of different lengths does not use oneDNN on a CPU: its backward pass takes 5
times as long in fp32, and 8 times as long in bf16 (dev/log/2026-11-25-lstm.md). Here every direction is an LSTM over a padded
grid, whose columns are read from the left or from the right. What lies behind the end of a sequence is never read.

T  packed tokens    S  sequences    L  length of the longest one    E  input size    W  output size: both directions
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Ragged


class BiLstm(nn.Module):
    """Layers of LSTMs in both directions. Each layer reads both directions of the one below."""

    def __init__(self, size: int, hidden_size: int, layers: int = 1):
        """Create the LSTMs.

        Args:
            size: Size of the input, E.
            hidden_size: Hidden size of each direction, W / 2.
            layers: Number of layers.
        """
        super().__init__()
        sizes = [size, *[2 * hidden_size] * (layers - 1)]
        self.ahead = nn.ModuleList(nn.LSTM(width, hidden_size) for width in sizes)
        self.back = nn.ModuleList(nn.LSTM(width, hidden_size) for width in sizes)

    def forward(self, x_TE: Float[Tensor, "T E"], sequences: Ragged) -> Float[Tensor, "T W"]:
        """Run the LSTMs over each sequence separately. A sequence may be empty."""
        grid = grid_of(sequences, len(x_TE))
        for ahead, back in zip(self.ahead, self.back, strict=True):
            right_LSH, left_LSH = ahead(x_TE[grid.ahead])[0], back(x_TE[grid.back])[0]
            x_TE = torch.cat([right_LSH[grid.column, grid.row], left_LSH[grid.mirrored, grid.row]], 1)
        return x_TE


@dataclass(frozen=True, eq=False)
class LstmGrid:
    """Places of packed tokens in a grid [L, S], whose columns are sequences, read from the left and from the right."""

    ahead: Int[Tensor, "L S"]
    """Packed row of each place, read from the left. Past the end of a sequence, it is an arbitrary row."""
    back: Int[Tensor, "L S"]
    """The same, read from the right."""
    column: Int[Tensor, " T"]
    """Place of each token in its sequence, from the left."""
    mirrored: Int[Tensor, " T"]
    """Place of each token in its sequence, from the right."""
    row: Int[Tensor, " T"]
    """Sequence of each token."""


def grid_of(ragged: Ragged, tokens: int) -> LstmGrid:
    """Return the places of packed tokens."""
    lengths, starts = ragged.lengths, ragged.cu_seqlens[:-1]
    place = torch.arange(ragged.longest, device=lengths.device)[:, None]
    ahead = (starts + place).clamp(max=tokens - 1)
    back = (starts + lengths - 1 - place).clamp(min=0)
    row = ragged.owners(tokens)
    column = torch.arange(tokens, device=lengths.device) - starts[row]
    return LstmGrid(ahead, back, column, lengths[row] - 1 - column, row)
