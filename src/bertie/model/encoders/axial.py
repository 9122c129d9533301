"""Axial positions: a table of positions as the combinations of two small ones (Kitaev et al. 2020, section 5, "Axial positional
encodings" of the published code).

Position p lies in row p // A of a grid with A columns. Its vector joins the vector of the row and the vector of the column.

T  packed tokens    E  size of a vector
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class AxialEmbedding(nn.Module):
    """Embeddings of positions in a grid."""

    def __init__(self, shape: tuple[int, ...], sizes: tuple[int, ...]):
        """Create the tables.

        Args:
            shape: Rows and columns of the grid.
            sizes: Sizes of the vectors of rows and of columns, together E.
        """
        super().__init__()
        self.axes = nn.ModuleList(nn.Embedding(count, size) for count, size in zip(shape, sizes, strict=True))
        self.columns = shape[1]

    def forward(self, position_ids: Int[Tensor, " T"]) -> Float[Tensor, "T E"]:
        rows, columns = self.axes
        return torch.cat([rows(position_ids // self.columns), columns(position_ids % self.columns)], -1)
