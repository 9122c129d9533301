"""Permutation language modeling, the objective of XLNet: predict tokens in a random order (Yang et al. 2019, section 2.2).

The tokens of a sequence have a random factorization order. Only the last ones in this order are predicted, about one in K
(section 2.3). The others, among them [CLS] and [SEP], are the context, which every token sees. A predicted token sees the
context and the predicted tokens before it in the order, never itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from bertie.base.config import Range
from bertie.base.contracts import Batch, Targets
from bertie.model.encoder import Encoder
from bertie.model.encoders.xlnet import XlnetConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.vocabulary_heads import VocabularyHead
from bertie.model.losses.losses import vocabulary_loss
from bertie.objectives.masking import select
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Traits, Weight
from bertie.objectives.requirements import refuse_others, require_encoder

LONGEST_SPAN = 5  # words; section 3.1


@dataclass(frozen=True)
class PermutationLM(Objective):
    """Select random tokens of every sequence, and predict them one after the other in a random order."""

    facts: ClassVar = HeadFacts("permutation LM", "masked words, in any order", "text-generation", "permutation")
    traits: ClassVar = Traits(predicts_text=True)
    kind: Literal["plm"] = "plm"
    weight: Weight = 1.0
    plm_probability: Annotated[float, Range(0, 0.99, above=True)] = 0.1667
    """Share of tokens to predict, at least one per sequence; XLNet's is 1/6 (K = 6). Special tokens are never selected."""
    masking: Literal["spans", "tokens"] = "spans"
    """Selected units. spans: 1 to 5 consecutive words, short ones more often, as in XLNet. tokens: single tokens. The order in
    which tokens are predicted is random in both cases, also within a span."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model has no query stream, or if another objective would have to use it."""
        require_encoder(self.kind, recipe.model, XlnetConfig)
        refuse_others(self.kind, (other for other in recipe.objectives if other.kind != self.kind))

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Draw the tokens to predict and their order, and return the batch with `order`, and the targets.

        The number of targets depends only on the row size: P = ceil(plm_probability × T). If fewer tokens are selected, the
        remaining targets are placeholders with weight 0.
        """
        ids, capacity = batch.input_ids, math.ceil(self.plm_probability * len(batch.input_ids))
        units = "tokens" if self.masking == "tokens" else "ngrams"
        selected = select(units, batch, labeling, self.plm_probability, capacity, longest_ngram=LONGEST_SPAN).positions
        order = np.zeros(len(ids), np.int32)
        order[selected] = _random_ranks(np.searchsorted(batch.ragged.cu_seqlens, selected, side="right"), labeling.rng)
        spare = (0, capacity - len(selected))
        weight = np.pad(np.ones(len(selected), np.float32), spare)
        targets = Targets(np.pad(selected, spare), np.pad(ids[selected], spare), weight)
        return Labeled(replace(batch, order=order), targets)

    def head(self, encoder: Encoder) -> VocabularyHead:
        """Build the head, with the encoder's word embeddings as its output matrix."""
        return VocabularyHead(encoder.embeddings.word, bias=True, loss=vocabulary_loss, permuted=True)


def _random_ranks(sequence: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a random permutation of 1, 2, … for each sequence.

    Args:
        sequence: int64 [selected tokens]: ascending numbers of their sequences.
        rng: The generator.
    """
    ranks = np.empty(len(sequence), np.int32)
    ranks[np.lexsort((rng.random(len(sequence)), sequence))] = np.arange(1, len(sequence) + 1)
    return ranks - np.searchsorted(sequence, sequence).astype(np.int32)
