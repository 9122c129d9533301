"""Features for heads that do not use the last layer alone: selected layers, and a BiLSTM over them.

T  packed tokens
Q  query rows, which the heads use
D  hidden size
E  size of the selected layers' output
W  size of the features
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from bertie.contracts import Hidden, Ragged
from bertie.model.encoder import EncoderConfig
from bertie.model.layer_selection import Layers, ScalarMix, select_layers, selected_width

LSTM_LAYERS = 2


class FeatureExtractor(nn.Module):
    """Selection of layers, and optionally a BiLSTM.

    `select` comes first. It has no weights, so its result is computed only once for a frozen encoder. `forward` follows.
    """

    def __init__(self, config: EncoderConfig, layers: Layers = "last", lstm_hidden_size: int = 0):
        """Create the trainable parts.

        Args:
            config: Configuration of the encoder.
            layers: The layers to use.
            lstm_hidden_size: Hidden size of each direction of a two-layer BiLSTM over the tokens of a sequence (Devlin et
                al. 2018, sections 5.1 and 5.3). 0: no BiLSTM.

        Raises:
            UsageError: The encoder has too few layers.
        """
        super().__init__()
        self.layers: Layers = layers
        self.width = 2 * lstm_hidden_size or selected_width(layers, config)
        self.scalar_mix = ScalarMix(config) if layers == "scalar_mix" else None
        size = selected_width(layers, config)
        self.lstm = nn.LSTM(size, lstm_hidden_size, LSTM_LAYERS, bidirectional=True) if lstm_hidden_size else None

    def select(self, hidden: Hidden, rows: Int[Tensor, " Q"]) -> Tensor:
        """Select what `forward` needs from all layers.

        Returns:
            [Q, E], or [Q, layers + 1, D] for a scalar mix. With a BiLSTM, T instead of Q, because it needs all tokens.
        """
        assert hidden.layers is not None
        states = hidden.layers if self.lstm else tuple(state[rows] for state in hidden.layers)
        return torch.stack(states, 1) if self.layers == "scalar_mix" else select_layers(self.layers, states)

    def forward(self, selected: Tensor, ragged: Ragged, rows: Int[Tensor, " Q"]) -> Float[Tensor, "Q W"]:
        """Compute the features at the query rows from the result of `select`."""
        x = self.scalar_mix(selected.unbind(1)) if self.scalar_mix else selected
        return x if self.lstm is None else _run_lstm(self.lstm, x, ragged.lengths)[rows]


def _run_lstm(lstm: nn.LSTM, x_TE: Float[Tensor, "T E"], lengths: Int[Tensor, " S"]) -> Float[Tensor, "T W"]:
    """Run the BiLSTM over each sequence separately."""
    packed: PackedSequence = pack_sequence(list(x_TE.split(lengths.tolist())), enforce_sorted=False)
    padded_SLW, sizes = pad_packed_sequence(lstm(packed)[0], batch_first=True)
    return torch.cat([row[:size] for row, size in zip(padded_SLW, sizes.tolist(), strict=True)])
