"""The Transformer encoder: embeddings and layers, from a packed `Batch` to `Hidden`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.base.contracts import Batch, Hidden, Ragged
from bertie.model.attention.attention import AttentionKind
from bertie.model.attention.disentangled import Distances
from bertie.model.attention.relative_bias import RelativeBias
from bertie.model.config import TransformerConfig
from bertie.model.convolution import Convolution
from bertie.model.distinct_words import DistinctWords, distinct_words
from bertie.model.embeddings import Embeddings, SharedEmbeddings
from bertie.model.layers import Layer, SelfAttention
from bertie.model.normalization import norm_of
from bertie.model.positions import layer_rotations

RunLayer = Callable[[int, Tensor, Tensor | None, Tensor | None], Tensor]
"""Computes a layer. Receives its number, from 0, its input, the rows of its output (None: all), and its rotation."""


def run_layers(
    layer: RunLayer,
    x_TD: Float[Tensor, "T D"],
    rotations: list[Tensor | None],
    rows: Int[Tensor, " Q"] | None,
    all_layers: bool,
) -> list[Tensor]:
    """Run the layers of an encoder, the last one only at some rows.

    Args:
        layer: Computes a layer.
        x_TD: The embeddings.
        rotations: Cosines and sines of the rotary positions of each layer.
        rows: Rows of the last layer. None: all.
        all_layers: Whether to return the embeddings and the output of every layer, instead of the last output.
    """
    outputs = []
    for number, rotation in enumerate(rotations):
        if all_layers:
            outputs.append(x_TD)
        x_TD = layer(number, x_TD, rows if number == len(rotations) - 1 else None, rotation)
    return [*outputs, x_TD]


class Layers(nn.Module):
    """The layers of an encoder, lowest first.

    Layers that share weights are one module, numbered by group. So each weight has one name, and is trained
    and saved once.
    """

    def __init__(self, config: TransformerConfig, attention: AttentionKind, relative: RelativeBias | Distances | None):
        super().__init__()
        self.config = config
        for number in range(config.num_hidden_groups or config.num_hidden_layers):
            self.add_module(str(number), Layer(config, attention, number, relative))

    def __len__(self) -> int:
        return self.config.num_hidden_layers

    def __getitem__(self, number: int) -> Layer:
        return self.get_submodule(str(self.config.group(range(len(self))[number])))  # pyright: ignore[reportReturnType]

    def __iter__(self) -> Iterator[Layer]:
        return (self[number] for number in range(len(self)))


class TransformerEncoder(nn.Module):
    """A Transformer encoder: BERT's, with the default settings."""

    def __init__(
        self,
        config: TransformerConfig,
        attention: AttentionKind = "automatic",
        embeddings: SharedEmbeddings | None = None,
    ):
        """Create the modules.

        Args:
            config: Sizes and settings.
            attention: The attention implementation.
            embeddings: Embeddings of another encoder to share. None: the encoder has its own.
        """
        super().__init__()
        self.config = config
        self.embeddings = embeddings or Embeddings(config)
        buckets = config.relative_bias_buckets
        self.relative = RelativeBias(buckets, config.num_attention_heads) if buckets else None
        self.distances = Distances(config) if config.disentangled else None
        self.convolution = Convolution(config) if config.conv_kernel_size else None
        self.layers = Layers(config, attention, self.distances or self.relative)
        self.final_norm = norm_of(config, config.hidden_size) if config.norm_position != "post" else None
        self.depth = 0
        """The first layers, which alone are computed; 0: all. In training, while the others are the identity."""
        self.recompute = False
        """Activation checkpointing: store only each layer's input and recompute the rest in the backward pass. It needs
        less memory and a third more computation."""
        self.call: Callable[..., Tensor] = call_layer
        """Function that calls a layer in training: `call_layer` or its compiled version."""

    def forward(self, batch: Batch, rows: Int[Tensor, " Q"] | None = None, all_layers: bool = False) -> Hidden:
        """Encode a batch.

        Args:
            batch: Packed sequences.
            rows: Sorted positions in T at which the last layer is computed. None: all positions.
            all_layers: If true, also return the output of the embeddings and of every layer. Do not combine it with `rows`.

        Returns:
            Hidden states; `last` is [T, D], or [Q, D] with `rows`.
        """
        words = distinct_words(self.embeddings, batch) if self.call is call_layer else None  # not in compiled layers
        layer = partial(self._run_layer, batch.ragged, words)
        rotations = layer_rotations(self.config, batch.position_ids)[: self.depth or None]
        with nullcontext() if self.relative is None else self.relative.once():
            *below, x_QD = run_layers(layer, self.embeddings(batch), rotations, rows, all_layers)
        x_QD = x_QD if self.final_norm is None else self.final_norm(x_QD)
        return Hidden(x_QD, (*below, x_QD) if all_layers else None)

    @property
    def capturable(self) -> bool:
        """Whether a GPU can record a forward and backward pass (`Model.capturable`).

        Recomputation reads the state of the random generator, and ALiBi copies its slopes from the host. Whether recorded
        dropout draws new random numbers in every step has not been measured on a GPU, so models with dropout are not
        recorded. Neither are biases and vectors by distance: their sizes follow the longest sequence.
        """
        dropout = self.config.hidden_dropout_prob, self.config.attention_probs_dropout_prob
        by_distance = self.relative, self.distances, self.convolution
        plain = self.config.position_embedding != "alibi" and not any(part is not None for part in by_distance)
        return plain and not self.recompute and not any(dropout)

    def compile_layers(self, backend: str | Callable[..., Any] = "inductor", half: bool = False) -> None:
        """Compile the layers for training: once for the last layer and once for all others of the same kind.

        The compiled code fits all batches with the same T, because the numbers of sequences and of query rows (Q) are
        dynamic in it. Attention with `varlen`, which is a single operation, is a part of it. Other attention is not
        compiled: its sizes differ between batches, and its operations are already fused.

        Args:
            backend: The backend of torch.compile.
            half: Whether training is in half precision on a GPU, so that attention may be `varlen`.
        """
        for part in self.modules():
            if isinstance(part, SelfAttention) and not (half and part.fits_varlen):
                part.attend = torch.compiler.disable(part.attend)  # pyright: ignore[reportAttributeAccessIssue]
        self.call = torch.compile(call_layer, backend=backend)

    def _run_layer(
        self,
        ragged: Ragged,
        words: DistinctWords | None,
        number: int,
        x_TD: Tensor,
        rows: Tensor | None,
        rotation: Tensor | None,
    ) -> Tensor:
        layer, words = self.layers[number], None if number else words
        if not torch.is_grad_enabled():
            output_QD = layer(x_TD, ragged, rows, rotation, words)
        else:
            if self.call is not call_layer:
                _mark_dynamic(ragged.cu_seqlens, rows)
            call = partial(checkpoint, self.call, use_reentrant=False) if self.recompute else self.call
            output_QD = call(layer, x_TD, ragged, rows, rotation, words)
        return output_QD if self.convolution is None or number else self.convolution(x_TD, output_QD, ragged, rows)


def _mark_dynamic(*tensors: Tensor | None) -> None:
    """Make the compiled code independent of the length of these tensors."""
    from torch._dynamo import maybe_mark_dynamic  # takes seconds to import, unless something is compiled already

    for tensor in tensors:
        if tensor is not None:
            maybe_mark_dynamic(tensor, 0)


def use_layers(encoder: nn.Module, count: int) -> bool:
    """Let an encoder compute only its first layers from now on; 0: all. Return whether that is a change."""
    if not isinstance(encoder, TransformerEncoder) or encoder.depth == count:
        return False
    encoder.depth = count
    return True


def call_layer(
    layer: nn.Module,
    x_TD: Tensor,
    ragged: Ragged,
    rows: Tensor | None,
    rotation: Tensor | None,
    words: DistinctWords | None = None,
) -> Tensor:
    return layer(x_TD, ragged, rows, rotation, words)
