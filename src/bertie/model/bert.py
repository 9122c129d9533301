"""An encoder and the heads on it: the whole model, as it is trained, saved and used."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from bertie.contracts import Batch, Hidden, Loss, MicroBatch, Ragged
from bertie.model.features import FeatureExtractor
from bertie.model.heads import ConditionalSpanHead
from bertie.model.transformer import Encoder


class BertModel(nn.Module):
    """heads: by the kind of objective or task that they serve. reading: what they read; None: the last layer."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module], reading: FeatureExtractor | None = None):
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.reading = reading

    def forward(self, micro: MicroBatch) -> dict[str, Loss]:
        """The losses of one micro-batch, by head."""
        states = self.encoder_states(micro.batch, micro.rows) if micro.hidden_states is None else micro.hidden_states
        hidden = self.head_inputs(states, micro.batch.ragged, micro.rows)
        return {name: self.heads[name](hidden, targets) for name, targets in micro.targets.items()}

    def encoder_states(self, batch: Batch, rows: Int[Tensor, " Q"]) -> Tensor:
        """What comes of the encoder: all that heads, and what lies between, need of it at the sorted positions `rows` in T.

        As rows, or as tokens where a BiLSTM reads those.
        """
        if self.reading is None:
            return self.encoder(batch, rows).last
        return self.reading.select(self.encoder(batch, all_layers=True), rows)

    def head_inputs(self, states: Tensor, ragged: Ragged, rows: Int[Tensor, " Q"]) -> Hidden:
        """What heads read, from what `states` gave."""
        return Hidden(states if self.reading is None else self.reading(states, ragged, rows))

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    @property
    def size(self) -> int:
        """Parameters, the tied vocabulary matrix counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def loads_in_transformers(self) -> bool:
        """Whether it is all in a class of transformers: heads that read the last layer, none of bertie's own."""
        return self.reading is None and not any(isinstance(head, ConditionalSpanHead) for head in self.heads.values())

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.heads)
