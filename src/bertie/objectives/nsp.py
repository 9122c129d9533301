"""Next sentence prediction (Devlin et al. 2018, section 3.1, task 2), and sentence order prediction (Lan et al. 2019).

The layout makes the pairs and their labels, so both are one objective with one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bertie.base.contracts import Batch, Targets
from bertie.base.errors import UsageError
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Traits, Weight
from bertie.objectives.requirements import require_transformer


@dataclass(frozen=True)
class NextSentence(Objective):
    """Predict from [CLS] whether B follows A (label 0) or not (label 1). Unlabeled pairs are ignored.

    The layout decides what the pairs of label 1 are. layout.negatives = "random": B comes from another document (next
    sentence prediction, as in BERT). layout.negatives = "swapped": A follows B (sentence order prediction, as in ALBERT).
    """

    facts: ClassVar = HeadFacts(
        "next sentence prediction", "whether a second text follows the first", "text-classification", "pair"
    )
    traits: ClassVar = Traits(reads_pairs=True)
    kind: Literal["nsp"] = "nsp"
    weight: Weight = 1.0

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the sequences are no sentence pairs, or if [CLS] cannot see them."""
        if recipe.layout.kind != "pairs":
            raise UsageError(f'objectives.nsp needs layout.kind "pairs", and it is "{recipe.layout.kind}": change it')
        transformer = require_transformer(self.kind, recipe.model)
        if recipe.layout.negatives == "swapped" and not transformer.knows_order:
            raise UsageError(
                'layout.negatives "swapped" needs model.position_embedding or model.type_vocab_size: set one of them'
            )
        if transformer.causal:
            raise UsageError("objectives.nsp reads [CLS], the first token, so it needs model.causal false: set it")

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:  # noqa: ARG002
        """Return the batch unchanged, and one target at the [CLS] of every sequence (P = S). Unlabeled pairs weigh 0."""
        labeled = batch.pair_label >= 0
        labels = np.where(labeled, batch.pair_label, 0)
        return Labeled(batch, Targets(batch.ragged.cu_seqlens[:-1], labels, labeled.astype(np.float32)))

    def head(self, encoder: Encoder) -> PooledHead:
        """Build the head: BERT's pooler and a layer with two outputs."""
        return PooledHead(encoder.config.hidden_size, outputs=2, dropout=0.0, layers=encoder.config.head_layers)
