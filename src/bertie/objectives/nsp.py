"""Next sentence prediction (Devlin et al. 2018, section 3.1, task 2), and sentence order prediction (Lan et al. 2019).

The layout makes the pairs and their labels, so both are one objective with one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from bertie.base.config import Range, ranges
from bertie.base.contracts import Batch, Targets
from bertie.base.errors import UsageError
from bertie.batches.layouts import Layout
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.objectives.objective import Labeled, Labeling, Objective, Traits
from bertie.objectives.requirements import require_transformer


@dataclass(frozen=True)
class NextSentence:
    """Predict from [CLS] whether B follows A (label 0) or not (label 1). Unlabeled pairs are ignored.

    The layout decides what the pairs of label 1 are. layout.negatives = "random": B comes from another document (next
    sentence prediction, as in BERT). layout.negatives = "swapped": A follows B (sentence order prediction, as in ALBERT).
    """

    facts: ClassVar = HeadFacts(
        "next sentence prediction", "whether a second text follows the first", "text-classification", "pair"
    )
    traits: ClassVar = Traits(reads_pairs=True)
    kind: Literal["nsp"] = "nsp"
    weight: Annotated[float, Range(0)] = 1.0
    """Weight of this loss in the total loss."""

    __post_init__ = ranges("objectives.nsp")

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[Objective, ...]) -> None:  # noqa: ARG002
        """Raise UsageError if the sequences are no sentence pairs, or if [CLS] cannot see them."""
        if layout.kind != "pairs":
            raise UsageError(
                f'objectives.nsp needs sentence pairs, and layout.kind is "{layout.kind}": set it to "pairs", or remove the '
                "objective"
            )
        transformer = require_transformer(self.kind, model)
        if layout.negatives == "swapped" and not transformer.knows_order:
            raise UsageError(
                'model.position_embedding is "none" and model.type_vocab_size is 0, so the model cannot tell in which order A '
                'and B stand, and layout.negatives is "swapped": set layout.negatives to "random", or give the model '
                "positions or segments"
            )
        if transformer.causal:
            raise UsageError(
                "objectives.nsp predicts from [CLS], the first token, which sees no other token if model.causal is true: "
                "set model.causal to false, or remove the objective"
            )

    def label(self, batch: Batch, given: Labeling) -> Labeled:  # noqa: ARG002
        """Return the batch unchanged, and one target at the [CLS] of every sequence (P = S). Unlabeled pairs weigh 0."""
        labeled = batch.pair_label >= 0
        labels = np.where(labeled, batch.pair_label, 0)
        return Labeled(batch, Targets(batch.ragged.cu_seqlens[:-1], labels, labeled.astype(np.float32)))

    def head(self, config: EncoderConfig, encoder: Encoder) -> PooledHead:  # noqa: ARG002
        """Build the head: BERT's pooler and a layer with two outputs."""
        return PooledHead(config.hidden_size, outputs=2, dropout=0.0, layers=config.head_layers)
