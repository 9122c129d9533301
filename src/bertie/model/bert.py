"""An encoder and the heads on it: the whole model, as it is trained, saved and used."""

from __future__ import annotations

import torch
from torch import nn

from bertie.contracts import Loss, MicroBatch
from bertie.model.transformer import Encoder


class BertModel(nn.Module):
    """heads: by the kind of objective or task that they serve."""

    encoder: Encoder

    def __init__(self, encoder: Encoder, heads: dict[str, nn.Module]):
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)

    def forward(self, micro: MicroBatch) -> dict[str, Loss]:
        """The losses of one micro-batch, by head."""
        hidden = self.encoder(micro.batch, micro.rows)
        return {name: self.heads[name](hidden, targets) for name, targets in micro.targets.items()}

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.word.weight.device

    @property
    def size(self) -> int:
        """Parameters, the tied vocabulary matrix counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(self.heads)
