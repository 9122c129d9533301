"""The complete model, as it is trained, saved and used: an encoder with its heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bertie.contracts import Batch, Hidden, Loss, MicroBatch
from bertie.model.encoder import Encoder
from bertie.model.features import FeatureExtractor
from bertie.model.heads import ConditionalSpanHead


class Model(nn.Module):
    """An encoder with its heads."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module], reading: FeatureExtractor | None = None):
        """Combine an encoder with its heads.

        Args:
            encoder: The Transformer.
            heads: Heads by the kind of their objective or task.
            reading: Computes the features of the heads from all layers. None: the heads use the last layer.
        """
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.reading = reading

    def forward(self, micro: MicroBatch) -> dict[str, Loss]:
        """Return the losses of a micro-batch by head."""
        states = self.encoder_states(micro.batch, micro.rows) if micro.hidden_states is None else micro.hidden_states
        hidden = replace(self.head_inputs(states, micro.batch, micro.rows), batch=micro.batch)
        return {name: self.heads[name](hidden, targets) for name, targets in micro.targets.items()}

    def encoder_states(self, batch: Batch, rows: Int[Tensor, " Q"]) -> Tensor:
        """Run the encoder and return the hidden states that the heads need. A frozen encoder's states can be cached.

        Args:
            batch: Packed sequences.
            rows: Sorted positions in T that the heads use.

        Returns:
            [Q, …] states at these rows, or [T, …] states of all tokens if a BiLSTM or pooling follows. The other
            dimensions are [D] without a feature extractor, otherwise as `FeatureExtractor.select` returns them.
        """
        if self.reading is None:
            return self.encoder(batch, rows).last
        return self.reading.select(self.encoder(self.reading.texts(batch), all_layers=True), rows)

    def head_inputs(self, states: Tensor, batch: Batch, rows: Int[Tensor, " Q"]) -> Hidden:
        """Return the input of the heads, computed from the result of `encoder_states`."""
        return Hidden(states if self.reading is None else self.reading(states, batch, rows))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.encoder.parameters()).device

    @property
    def size(self) -> int:
        """Number of parameters. The word embeddings, which the MLM head shares, count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def loads_in_transformers(self) -> bool:
        """Whether a class of transformers represents the whole model: its heads use the last layer and exist there."""
        return self.reading is None and not any(isinstance(head, ConditionalSpanHead) for head in self.heads.values())

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the heads."""
        return frozenset(self.heads)
