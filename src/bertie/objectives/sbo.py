"""Span boundary objective of SpanBERT (Joshi et al. 2020, section 3.2).

Masked language modeling with `masking = "spans"` chooses the spans and replaces them. It hands them on in
its notes, because the row that this objective labels no longer has the original tokens. Spans never touch, so the
tokens beside a span are not masked themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bertie.base.contracts import Batch, BoundaryTargets
from bertie.base.errors import UsageError
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.span_boundary import POSITIONS, SpanBoundaryHead
from bertie.objectives.mlm import MaskedLM, masked_row
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Weight
from bertie.objectives.requirements import before, require_transformer


@dataclass(frozen=True)
class SpanBoundary(Objective):
    """Predict each token of a masked span from the two tokens beside the span and its position in the span."""

    facts: ClassVar = HeadFacts("span boundary", "words from the words beside them")
    kind: Literal["sbo"] = "sbo"
    weight: Weight = 1.0

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if no objective before this one masks spans."""
        earlier = before(self.kind, recipe.objectives)
        if not any(isinstance(other, MaskedLM) and other.masking == "spans" for other in earlier):
            raise UsageError(
                'objectives.sbo needs an objective with kind = "mlm" and masking = "spans" before it: add it'
            )

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Return the batch unchanged, and one target per token of a masked span.

        P is the number of targets of masked language modeling. Placeholders weigh 0, and so do tokens of a span after the
        first `POSITIONS`.
        """
        spans = masked_row(labeling).spans
        assert spans is not None  # see `check`
        cu_seqlens = batch.ragged.cu_seqlens
        owner = np.searchsorted(cu_seqlens, spans.index, side="right") - 1
        # A span at the border of a sequence without special tokens has its own token as the boundary.
        before = np.maximum(spans.first - 1, cu_seqlens[owner])
        after = np.minimum(spans.last + 1, cu_seqlens[owner + 1] - 1)
        offset = spans.index - spans.first
        weight = (offset < POSITIONS).astype(np.float32)
        spare = (0, spans.capacity - len(offset))
        targets = BoundaryTargets(
            index=np.pad(np.stack([before, after], 1).ravel(), (0, 2 * spare[1])),
            label=np.pad(spans.label, spare),
            weight=np.pad(weight, spare),
            offset=np.pad(np.minimum(offset, POSITIONS - 1), spare),
        )
        return Labeled(batch, targets)

    def head(self, encoder: Encoder) -> SpanBoundaryHead:
        """Build the head, with the encoder's word embeddings as its output matrix."""
        return SpanBoundaryHead(require_transformer(self.kind, encoder.config), encoder.embeddings.word)
