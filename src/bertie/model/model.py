"""The complete model, as it is trained, saved and used: an encoder with its heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertie.base.contracts import AnyMicroBatch, Batch, ComparedBatch, Hidden, Loss, MicroBatch
from bertie.model.encoder import Encoder, Replacement
from bertie.model.encoders.electra import GENERATOR_HEAD, fill_masks
from bertie.model.heads.distillation import DistillationHead, MaskedModel
from bertie.model.heads.features import FeatureExtractor
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.transformer import TransformerEncoder


class Model(nn.Module):
    """An encoder with its heads."""

    encoder: Encoder

    def __init__(
        self,
        encoder: Encoder,
        heads: dict[str, nn.Module],
        reading: FeatureExtractor | None = None,
        generator: TransformerEncoder | None = None,
    ):
        """Combine an encoder with its heads.

        Args:
            encoder: The Transformer.
            heads: Heads by the kind of their objective or task.
            reading: Computes the features of the heads from all layers. None: the heads use the last layer.
            generator: ELECTRA's generator, which fills masks before the encoder reads a batch in training. It has the
                head of masked language modeling.
        """
        super().__init__()
        self.encoder = encoder
        self.heads = nn.ModuleDict(heads)
        self.reading = reading
        if reading is not None:
            reading.connect(heads.values())
        self.generator = generator

    def forward(self, micro: AnyMicroBatch) -> dict[str, Loss]:
        """Return the losses of a micro-batch by head."""
        losses: dict[str, Loss] = {}
        if isinstance(micro, ComparedBatch):
            for name, targets in micro.targets.items():
                head: Any = self.heads[name]
                losses[name] = head.compare(self.compared_vectors(name, micro.parts), targets)
            return losses
        if self.generator is not None:
            head = cast(MaskedLMHead, self.heads[GENERATOR_HEAD])
            losses[GENERATOR_HEAD], micro = fill_masks(self.generator, head, micro)
        states = self.encoder_states(micro.batch, micro.rows) if micro.hidden_states is None else micro.hidden_states
        hidden = replace(self.head_inputs(states, micro.batch, micro.rows), batch=micro.batch, rows=micro.rows)
        for name, targets in micro.targets.items():
            head = self.heads[name]
            losses[name] = head(replace(hidden, last=states) if _auxiliary(head) else hidden, targets)
        return losses

    def compared_vectors(self, name: str, parts: list[MicroBatch]) -> Tensor:
        """Return the vectors of the texts of all parts, float [S, D], as a head computes them.

        The memory holds the activations of one part: those of the last one remain, and those of the others are computed again
        in the backward pass, with the same dropout (Gao et al. 2021, GradCache).
        """
        head: Any = self.heads[name]

        def vectors(part: MicroBatch, _: Tensor) -> Tensor:
            states = self.encoder_states(part.batch, part.rows) if part.hidden_states is None else part.hidden_states
            hidden = self.head_inputs(states, part.batch, part.rows)
            targets = part.targets[name]
            return head.vectors(hidden, targets, len(targets.weight))

        if not parts:  # of a rank without work in this step, which others wait for
            return torch.zeros(0, self.encoder.config.hidden_size, device=self.device, requires_grad=True)
        *earlier, last = parts
        # The checkpoint computes gradients only if an input needs some, and keeps the generator of the input's device.
        anchor = torch.zeros((), device=self.device, requires_grad=True)
        again = [checkpoint(vectors, part, anchor, use_reentrant=True) for part in earlier]
        return torch.cat([*again, vectors(last, anchor)])

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
        # An engine in place of the encoder computes the last layer only.
        all_layers = self.reading.layers != "last"
        return self.reading.select(self.encoder(self.reading.texts(batch), all_layers=all_layers), batch, rows)

    def head_inputs(self, states: Tensor, batch: Batch, rows: Int[Tensor, " Q"]) -> Hidden:
        """Return the input of the heads, computed from the result of `encoder_states`."""
        return Hidden(states if self.reading is None else self.reading(states, batch, rows))

    @property
    def transformers(self) -> list[TransformerEncoder]:
        """The encoder and the generator, as far as they are there and are Transformers."""
        return [part for part in (self.encoder, self.generator) if isinstance(part, TransformerEncoder)]

    @property
    def capturable(self) -> bool:
        """Whether a GPU can record and repeat a forward and backward pass: the host neither waits nor decides in it."""
        parts = (self.encoder, self.generator, *(self.teacher or ())[:1])
        return all(isinstance(part, TransformerEncoder) and part.capturable for part in parts if part is not None)

    def recompute_layers(self, recompute: bool) -> None:
        """Turn activation checkpointing on or off (`TransformerEncoder.recompute`)."""
        for transformer in self.transformers:
            transformer.recompute = recompute

    @property
    def encoder_heads(self) -> frozenset[str]:
        """Kinds of the heads with weights that read the encoder, and not the generator: those that are saved."""
        saved = {kind for kind, head in self.heads.items() if not _auxiliary(head)}
        return frozenset(kind for kind in saved if self.encoder_of(kind) is self.encoder)

    @property
    def teacher(self) -> MaskedModel | None:
        """The teacher of a distillation. It is not part of the model: it is neither trained nor saved."""
        return next((head.teacher for head in self.heads.values() if isinstance(head, DistillationHead)), None)

    def encoder_of(self, kind: str) -> Encoder | Replacement:
        """Return the encoder whose hidden states a head reads. Masked language modeling reads the generator's."""
        return self.encoder if self.generator is None or kind != GENERATOR_HEAD else self.generator

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.encoder.parameters()).device

    @property
    def size(self) -> int:
        """Number of parameters. The word embeddings, which the MLM head shares, count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the heads."""
        return frozenset(self.heads)


def _auxiliary(head: nn.Module) -> bool:
    """Whether a head is only there in training, and reads what the encoder has computed, before any pooling."""
    return getattr(head, "auxiliary", False)
