"""Padded grids for engines that need them: packed sequences are grouped so that next to nothing of a grid is padding.

T  packed tokens    Q  query rows    S  sequences of a grid    L  length of its longest    D  hidden size
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Hidden
from bertie.model.transformer import TransformerEncoder

GRID_TOKENS = 2048
"""Most tokens of a grid, unless a single sequence is longer."""
MIN_LENGTH_RATIO = 0.94
"""Minimum length of a grid's shortest sequence, relative to its longest."""
ComputeGrid = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From input_ids, attention_mask and token_type_ids, each int64 [S, L], to the last hidden states, float32 [S, L, D]."""


class GridEncoder(nn.Module):
    """An encoder whose last layer is computed by another library. Several threads may use it at once if `run` allows it."""

    def __init__(self, encoder: TransformerEncoder, run: ComputeGrid):
        """Wrap an encoder.

        Args:
            encoder: The encoder. It computes what the other library does not return: the outputs of all layers, and
                sequences with positions of their own.
            run: Computes a grid.
        """
        super().__init__()
        self.config = encoder.config
        self.embeddings = encoder.embeddings
        self.encoder = encoder
        self.run = run

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch, as `TransformerEncoder.forward` does."""
        lengths = batch.ragged.lengths.numpy()
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(len(batch.input_ids)) - np.repeat(starts, lengths)
        if all_layers or not np.array_equal(positions, batch.position_ids.numpy()):
            return self.encoder(batch, rows, all_layers)
        ids, segments = batch.input_ids.numpy(), batch.token_type_ids.numpy()
        outputs = []
        for group in groups(lengths):
            group_lengths = lengths[group]
            valid = np.arange(group_lengths.max()) < group_lengths[:, None]
            tokens = slice(int(starts[group.start]), int(starts[group.start] + group_lengths.sum()))
            grids = [np.zeros(valid.shape, np.int64) for _ in range(2)]
            for grid, values in zip(grids, (ids, segments), strict=True):
                grid[valid] = values[tokens]
            states = self.run(grids[0], valid.astype(np.int64), grids[1])
            outputs.append(states.reshape(-1, states.shape[-1]) if valid.all() else states[valid])
        x_TD = torch.from_numpy(outputs[0] if len(outputs) == 1 else np.concatenate(outputs))
        return Hidden(x_TD if rows is None else x_TD[rows])


def groups(lengths: np.ndarray) -> Iterator[slice]:
    """Split consecutive sequences into grids of similar lengths."""
    first, longest = 0, 0
    for i, length in enumerate(lengths.tolist()):
        shortest = min(length, int(lengths[first:i].min(initial=length)))
        grown = max(longest, length)
        if i > first and ((i - first + 1) * grown > GRID_TOKENS or shortest < MIN_LENGTH_RATIO * grown):
            yield slice(first, i)
            first, grown = i, length
        longest = grown
    if len(lengths):
        yield slice(first, len(lengths))
