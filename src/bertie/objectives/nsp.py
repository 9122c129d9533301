"""Next sentence prediction (Devlin et al. 2018, section 3.1, task 2), and sentence order prediction (Lan et al. 2019).

The layout makes the pairs and their labels, so both are one objective with one head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie.batches.layouts import Layout
from bertie.contracts import Batch, Targets
from bertie.errors import UsageError, require_range
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.heads import PooledHead
from bertie.model.model import Model
from bertie.objectives.requirements import require_transformer
from bertie.text.shards import Shards
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class NextSentence:
    """Predict from [CLS] whether B follows A (label 0) or not (label 1). Unlabeled pairs are ignored.

    The layout decides what the pairs of label 1 are. layout.negatives = "random": B comes from another document (next
    sentence prediction, as in BERT). layout.negatives = "swapped": A follows B (sentence order prediction, as in ALBERT).
    """

    kind: Literal["nsp"] = "nsp"
    weight: float = 1.0
    """Weight of this loss in the total loss."""

    def __post_init__(self) -> None:
        require_range("objectives.nsp", self, "weight", low=0)

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[object, ...]) -> None:  # noqa: ARG002
        """Raise UsageError if the sequences are no sentence pairs, or if [CLS] cannot see them."""
        if layout.kind != "pairs":
            raise UsageError(
                f'objectives.nsp needs sentence pairs, and layout.kind is "{layout.kind}": set it to "pairs", or remove the '
                "objective"
            )
        if require_transformer(self.kind, model).causal:
            raise UsageError(
                "objectives.nsp predicts from [CLS], the first token, which sees no other token if model.causal is true: "
                "set model.causal to false, or remove the objective"
            )

    def label(
        self,
        batch: Batch,
        tokenizer: Tokenizer,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Batch, Targets]:
        """Return the batch unchanged, and one target at the [CLS] of every sequence (P = S). Unlabeled pairs weigh 0."""
        labeled = batch.pair_label >= 0
        return batch, Targets(
            batch.ragged.cu_seqlens[:-1], np.where(labeled, batch.pair_label, 0), labeled.astype(np.float32)
        )

    def initialize(self, model: Model, shards: Shards) -> None:
        """Do nothing: random initial weights suit two balanced classes."""

    def head(self, config: EncoderConfig, encoder: Encoder) -> PooledHead:  # noqa: ARG002
        """Build the head: BERT's pooler and a layer with two outputs."""
        return PooledHead(config.hidden_size, outputs=2, dropout=0.0, layers=config.head_layers)
