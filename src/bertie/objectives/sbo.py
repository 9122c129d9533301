"""Span boundary objective of SpanBERT (Joshi et al. 2020, section 3.2).

Masked language modeling with `masking = "spans"` chooses the spans and replaces them. It hands them on in
`Batch.masked_spans`, because the row that this objective labels no longer has the original tokens. Spans never touch, so the
tokens beside a span are not masked themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie.batches.layouts import Layout
from bertie.contracts import Batch, BoundaryTargets
from bertie.errors import UsageError, require_range
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.model import Model
from bertie.model.span_boundary import POSITIONS, SpanBoundaryHead
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.requirements import require_transformer
from bertie.text.shards import Shards
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SpanBoundary:
    """Predict each token of a masked span from the two tokens beside the span and its position in the span."""

    kind: Literal["sbo"] = "sbo"
    weight: float = 1.0
    """Weight of this loss in the total loss."""

    def __post_init__(self) -> None:
        require_range("objectives.sbo", self, "weight", low=0)

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[object, ...]) -> None:  # noqa: ARG002
        """Raise UsageError if no objective before this one masks spans."""
        before = objectives[: objectives.index(self)] if self in objectives else objectives
        if not any(isinstance(other, MaskedLM) and other.masking == "spans" for other in before):
            raise UsageError(
                'objectives.sbo predicts the spans of masked language modeling: put an objective with kind = "mlm" and '
                'masking = "spans" before it'
            )

    def label(
        self,
        batch: Batch,
        tokenizer: Tokenizer,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Batch, BoundaryTargets]:
        """Return the batch unchanged, and one target per token of a masked span.

        P is the number of targets of masked language modeling. Placeholders weigh 0, and so do tokens of a span after the
        first `POSITIONS`.

        Raises:
            ValueError: If no objective masked spans before.
        """
        spans = batch.masked_spans
        if spans is None:
            raise ValueError("the batch has no masked spans")
        cu_seqlens = batch.ragged.cu_seqlens
        owner = np.searchsorted(cu_seqlens, spans.index, side="right") - 1
        # A span at the border of a sequence without special tokens has its own token as the boundary.
        before = np.maximum(spans.first - 1, cu_seqlens[owner])
        after = np.minimum(spans.last + 1, cu_seqlens[owner + 1] - 1)
        offset = spans.index - spans.first
        weight = (offset < POSITIONS).astype(np.float32)
        spare = (0, spans.capacity - len(offset))
        return batch, BoundaryTargets(
            index=np.pad(np.stack([before, after], 1).ravel(), (0, 2 * spare[1])),
            label=np.pad(spans.label, spare),
            weight=np.pad(weight, spare),
            offset=np.pad(np.minimum(offset, POSITIONS - 1), spare),
        )

    def initialize(self, model: Model, shards: Shards) -> None:
        """Do nothing: the head starts with random weights."""

    def head(self, config: EncoderConfig, encoder: Encoder) -> SpanBoundaryHead:
        """Build the head, with the encoder's word embeddings as its output matrix."""
        return SpanBoundaryHead(require_transformer(self.kind, config), encoder.embeddings.word)
