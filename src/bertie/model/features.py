"""What a head reads of the encoder, where that is not the last layer alone: chosen layers, and a BiLSTM over them.

T  tokens
Q  rows that heads read
D  hidden size
E  width of the chosen layers
W  width of what comes out
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from bertie.contracts import Hidden, Ragged
from bertie.model.config import BertConfig
from bertie.model.layer_selection import Layers, ScalarMix, select_layers, selected_width

LSTM_LAYERS = 2


class FeatureExtractor(nn.Module):
    """First `kept`, which has no weights, so that of a frozen encoder it is computed once; then `forward`."""

    def __init__(self, config: BertConfig, layers: Layers = "last", lstm_hidden_size: int = 0):
        """lstm_hidden_size: hidden size of each direction of a two-layer BiLSTM over a sequence's tokens (Devlin et al.
        2018, sections 5.1 and 5.3); 0: none. Errors: UsageError where the model has too few layers."""
        super().__init__()
        self.layers: Layers = layers
        self.width = 2 * lstm_hidden_size or selected_width(layers, config)
        self.scalar_mix = ScalarMix(config) if layers == "scalar_mix" else None
        size = selected_width(layers, config)
        self.lstm = nn.LSTM(size, lstm_hidden_size, LSTM_LAYERS, bidirectional=True) if lstm_hidden_size else None

    def select(self, hidden: Hidden, rows: Int[Tensor, " Q"]) -> Tensor:
        """What later steps read of all layers: [T, E] or [T, layers + 1, D], or of the rows only if there is no BiLSTM."""
        assert hidden.layers is not None
        states = hidden.layers if self.lstm else tuple(state[rows] for state in hidden.layers)
        return torch.stack(states, 1) if self.layers == "scalar_mix" else select_layers(self.layers, states)

    def forward(self, kept: Tensor, ragged: Ragged, rows: Int[Tensor, " Q"]) -> Float[Tensor, "Q W"]:
        x = self.scalar_mix(kept.unbind(1)) if self.scalar_mix else kept
        return x if self.lstm is None else _through(self.lstm, x, ragged.lengths)[rows]


def _through(lstm: nn.LSTM, x_TE: Float[Tensor, "T E"], lengths: Int[Tensor, " S"]) -> Float[Tensor, "T W"]:
    """Each sequence by itself, in both directions."""
    packed: PackedSequence = pack_sequence(list(x_TE.split(lengths.tolist())), enforce_sorted=False)
    padded_SLW, sizes = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    return torch.cat([row[:size] for row, size in zip(padded_SLW, sizes.tolist(), strict=True)])
