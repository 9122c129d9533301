"""The bidirectional encoder: embeddings and a stack of layers, from a packed Batch to Hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.contracts import Batch, Hidden, Ragged
from bertie.model.attention import Kind
from bertie.model.config import BertConfig
from bertie.model.embeddings import Embeddings
from bertie.model.layers import Layer, SelfAttention


class Encoder(nn.Module):
    def __init__(self, config: BertConfig, attention: Kind = "automatic"):
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, attention) for _ in range(config.num_hidden_layers))
        self.recompute = False
        """Keep only what goes into each layer, and compute the rest again on the way back: less memory, a third more work."""
        self.call: Callable[..., Tensor] = _call
        """How a layer is called in training: `_call`, or that compiled."""

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

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor") -> None:
        """Compile a layer for training: once for all of them but the last, once for the last, for any number of sequences.

        What it is called with keeps its shapes: T is the same in every batch, and Q is a symbol in what is compiled.
        Attention stays as it is: its sizes differ from batch to batch, and what there is to fuse in it is fused.
        """
        for part in self.modules():
            if isinstance(part, SelfAttention):
                part.attend = torch.compiler.disable(part.attend)  # pyright: ignore[reportAttributeAccessIssue]
        self.call = torch.compile(_call, backend=backend)

    def _through(self, layer: nn.Module, x_TD: Tensor, ragged: Ragged, rows: Tensor | None = None) -> Tensor:
        if not torch.is_grad_enabled():
            return layer(x_TD, ragged, rows)
        if self.call is not _call:
            _mark_counts(ragged.cu_seqlens, rows)
        if self.recompute:
            return checkpoint(self.call, layer, x_TD, ragged, rows, use_reentrant=False)
        return self.call(layer, x_TD, ragged, rows)


def _mark_counts(*tensors: Tensor | None) -> None:
    """What is compiled for one batch shall do for others with more or fewer of these."""
    from torch._dynamo import maybe_mark_dynamic  # seconds to import, and there once something is compiled

    for tensor in tensors:
        if tensor is not None:
            maybe_mark_dynamic(tensor, 0)


def _call(layer: nn.Module, x_TD: Tensor, ragged: Ragged, rows: Tensor | None) -> Tensor:
    return layer(x_TD, ragged, rows)


def initialize_weights(module: nn.Module, standard_deviation: float, cut: float = 2.0) -> None:
    """BERT's initial weights: normal, none beyond `cut` standard deviations, biases 0, norms 1. Uses torch's generator."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            furthest = cut * standard_deviation
            nn.init.trunc_normal_(part.weight, std=standard_deviation, a=-furthest, b=furthest)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
