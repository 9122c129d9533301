"""The bidirectional encoder: embeddings and a stack of layers, from a packed Batch to Hidden."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.contracts import Batch, Hidden
from bertie.model.attention import Kind
from bertie.model.config import BertConfig
from bertie.model.embeddings import Embeddings
from bertie.model.layers import Layer


class Encoder(nn.Module):
    def __init__(self, config: BertConfig, attention: Kind = "automatic"):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, attention) for _ in range(config.num_hidden_layers))
        self.recompute = False
        """Keep only what goes into each layer, and compute the rest again on the way back: less memory, a third more work."""

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """last: [T, D], or [Q, D] with `rows`: the sorted positions in T for which the last layer is computed.

        all_layers: also keep the embeddings' and every layer's output, each [T, D] (so not together with `rows`).
        """
        x_TD = self.embeddings(batch)
        kept = [x_TD]
        for layer in self.layers[:-1]:
            x_TD = self._through(layer, x_TD, batch.ragged)
            kept.append(x_TD)
        x_QD = self._through(self.layers[-1], x_TD, batch.ragged, rows)
        return Hidden(x_QD, (*kept, x_QD) if all_layers else None)

    def _through(self, layer: nn.Module, *inputs: Any) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)


def initialise(module: nn.Module, standard_deviation: float) -> None:
    """BERT's initial weights: truncated normal within two standard deviations, biases 0, norms 1. Uses torch's generator."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.trunc_normal_(
                part.weight, std=standard_deviation, a=-2 * standard_deviation, b=2 * standard_deviation
            )
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
