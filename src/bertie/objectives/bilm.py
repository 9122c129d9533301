"""The objective of ELMo: predict the next token from the left and the previous token from the right (Peters et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import nn

from bertie.base.contracts import FILLER, Batch, Targets
from bertie.base.errors import UsageError
from bertie.model.encoder import Encoder
from bertie.model.encoders.lstm import BidirectionalLMHead, LstmConfig, LstmEncoder
from bertie.model.head_facts import HeadFacts
from bertie.objectives.initialization import Vectors
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Weight
from bertie.objectives.requirements import require_encoder


@dataclass(frozen=True)
class BidirectionalLM(Objective):
    """Predict the next token from one half of the hidden state, and the previous token from the other half."""

    facts: ClassVar = HeadFacts("LM in both directions", "the next word and the previous one")
    kind: Literal["bilm"] = "bilm"
    weight: Weight = 1.0
    initialization: Vectors = "random"
    """Initial word embeddings, which are the output matrix, too. random: as in the model's paper. cooccurrence: co-occurrence
    vectors of the corpus."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model does not keep the two directions apart."""
        lstm = require_encoder(self.kind, recipe.model, LstmConfig)
        if self.initialization == "cooccurrence" and lstm.input.kind == "characters":
            raise UsageError(
                'objectives.bilm.initialization "cooccurrence" does not work with model.input.kind "characters": set one of '
                'them to "random" or "subwords"'
            )

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:  # noqa: ARG002
        """Return the batch unchanged, and two targets per token: `label` and `weight` are [T, 2], next and previous token.

        The last token of a sequence has no next one, the first has no previous one, and filler has neither: weight 0.
        """
        ids, cu_seqlens = batch.input_ids, batch.ragged.cu_seqlens
        weight = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32)[:, None].repeat(2, 1)
        weight[cu_seqlens[1:] - 1, 0] = 0
        weight[cu_seqlens[:-1], 1] = 0
        labels = np.stack([np.append(ids[1:], 0), np.append(0, ids[:-1])], 1)
        return Labeled(batch, Targets(np.arange(len(ids)), labels, weight))

    def head(self, encoder: Encoder) -> BidirectionalLMHead:
        """Build the head. Both directions share the encoder's word embeddings as output matrix, if it has any."""
        if isinstance(encoder, LstmEncoder) and encoder.embeddings.characters is not None:
            return BidirectionalLMHead(
                nn.Embedding(encoder.config.vocab_size, encoder.config.hidden_size // 2), tied=False
            )
        return BidirectionalLMHead(encoder.embeddings.word)
