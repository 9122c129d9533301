"""Features for heads that do not use the last layer alone: selected layers, a BiLSTM over them, pooled texts.

T  packed tokens
Q  query rows, which the heads use
D  hidden size
E  size of the selected layers' output
W  size of the features
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bertie.base.contracts import Batch, Hidden
from bertie.base.errors import UsageError
from bertie.model.bilstm import BiLstm
from bertie.model.encoder import EncoderConfig
from bertie.model.heads.layer_selection import LayerSelection, ScalarMix, select_layers, selected_width
from bertie.model.heads.pooled_texts import PooledRows, separate_texts
from bertie.model.heads.text_pooling import POOLINGS, TextPooling
from bertie.model.pooling import Pooling


class FeatureExtractor(nn.Module):
    """Selection of layers, and optionally a BiLSTM, and pooled texts in place of single tokens.

    `select` comes first. It has no weights, so its result is computed only once for a frozen encoder. `forward` follows.
    """

    def __init__(
        self,
        config: EncoderConfig,
        layers: LayerSelection = "last",
        lstm_hidden_size: int = 0,
        pooling: TextPooling = "token",
        pairs: bool = False,
    ):
        """Create the trainable parts.

        Args:
            config: Configuration of the encoder.
            layers: The layers to use.
            lstm_hidden_size: Hidden size of each direction of a BiLSTM over the tokens of a sequence. 0: no BiLSTM.
            pooling: The pooling of a text.
            pairs: Whether sequences are pairs of texts. If they are pooled, encoder and BiLSTM read each text separately.

        Raises:
            UsageError: The encoder has too few layers, or segments that the pooling leaves out.
        """
        super().__init__()
        self.layers: LayerSelection = layers
        self.scalar_mix = ScalarMix(config) if layers == "scalar_mix" else None
        size, kind = selected_width(layers, config), POOLINGS[pooling]
        self.lstm = BiLstm(size, lstm_hidden_size, kind.facts.bilstm_layers) if lstm_hidden_size else None
        self.pooling: TextPooling = pooling
        self.pooled = kind(2 * lstm_hidden_size or size, pairs)
        self.width = self.pooled.width
        self.separate = pairs and kind.facts.separate != ""
        self.text_vector: Pooling = config.text_vector
        if kind.facts.separate == "orders" and config.type_vocab_size > 1:
            raise UsageError(f"task.pooling {pooling} is for models without segments: set it to token")

    def connect(self, heads: Iterable[nn.Module]) -> None:
        """Tell the heads of texts and the pooling of each other."""
        self.pooled.connect(heads)

    @property
    def only_pooled(self) -> TextPooling | None:
        """The pooling, if the features are the pooled last layer, which classes of transformers compute, too."""
        plain = self.layers == "last" and self.lstm is None and self.pooled.facts.in_transformers
        return self.pooling if plain else None

    @property
    def all_tokens(self) -> bool:
        """Whether a trained layer reads all tokens of a sequence: a BiLSTM, a layer over pooled texts, or the head's layer."""
        return self.lstm is not None or self.pooled.facts.reads_all

    def texts(self, batch: Batch) -> Batch:
        """Return the batch as the encoder reads it: with the texts of pairs as sequences of their own, if they are pooled."""
        return separate_texts(batch) if self.separate else batch

    def select(self, hidden: Hidden, batch: Batch, rows: Int[Tensor, " Q"]) -> Tensor:
        """Select what `forward` needs from all layers, or from the last one if no other is used.

        Returns:
            [Q, E], or [Q, layers + 1, D] for a scalar mix. T instead of Q, if `all_tokens`.
        """
        states = (hidden.last,) if hidden.layers is None else hidden.layers
        if not self.all_tokens:  # here, since a frozen encoder's selection is cached
            texts = self._places(batch, rows)
            states = tuple(self.pooled.reduce(state, texts) for state in states)
        return torch.stack(states, 1) if self.layers == "scalar_mix" else select_layers(self.layers, states)

    def forward(self, selected: Tensor, batch: Batch, rows: Int[Tensor, " Q"]) -> Float[Tensor, "Q W"]:
        """Compute the features at the query rows from the result of `select`. Pooled texts: each row's sequence."""
        x = self.scalar_mix(selected.unbind(1)) if self.scalar_mix else selected
        texts = self._places(batch, rows)
        if self.lstm is not None:
            x = self.lstm(x, texts.read)
        return self.pooled.vectors(self.pooled.reduce(x, texts) if self.all_tokens else x)

    def _places(self, batch: Batch, rows: Int[Tensor, " Q"]) -> PooledRows:
        return PooledRows(rows, batch.ragged, self.texts(batch).ragged, self.text_vector)
