"""Masked next token prediction, an objective of GPT-BERT (Charpentier and Samuel 2024): the row before a masked token predicts
it.

The text is masked as for masked language modeling, and the encoder sees both sides. Only the row of the prediction differs: a
causal model predicts the next token in the same row, so one head can serve both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from bertie.base.config import NotNegative, PositiveFraction, Range
from bertie.base.contracts import Batch
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.objectives.initialization import Vectors, initialize_output
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, SequenceShare, Traits, Weight
from bertie.objectives.requirements import refuse_others, require_both_sides, require_replacements, require_transformer


@dataclass(frozen=True)
class MaskedNextToken(Objective):
    """Mask tokens as in BERT, and predict each one from the row before it. The model must not be causal."""

    # Classes of transformers read other rows.
    facts: ClassVar = HeadFacts("masked next token", "masked words", "fill-mask")
    traits: ClassVar = Traits(predicts_text=True, masks=True)
    initialize = initialize_output
    kind: Literal["mntp"] = "mntp"
    weight: Weight = 1.0
    share: SequenceShare = 1.0
    mntp_probability: PositiveFraction = 0.15
    """Share of tokens to predict, at least one per sequence. Special tokens are never selected."""
    mntp_probability_end: Annotated[float | None, Range(0, 1, above=True)] = None
    """Share of tokens to predict at the end of the run. The share changes linearly from mntp_probability. None: it is
    constant. The evaluation set always uses mntp_probability."""
    masking: Literal["tokens", "words"] = "tokens"
    """Selected units. tokens: single tokens, as in BERT. words: whole words."""
    mask_replace_prob: NotNegative = 0.8
    """Share of the selected tokens that become [MASK]."""
    random_replace_prob: NotNegative = 0.1
    """Share of the selected tokens that become a random subword. The rest remain unchanged."""
    initialization: Vectors = "random"
    """Initial weights. random: as in BERT. cooccurrence: the output bias is the log frequency of each subword, and the word
    embeddings (the output matrix, too) are co-occurrence vectors of the corpus."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model is causal or no Transformer, or if another objective masks the row, too."""
        require_transformer(self.kind, recipe.model)
        require_both_sides(self.kind, recipe.model)
        require_replacements(self)
        refuse_others(self.kind, (other for other in recipe.objectives if other.traits.masks and other is not self))

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Mask a row as `MaskedLM.label`. The targets are at the positions before the masked tokens.

        A token without one before it in its sequence weighs 0.
        """
        masks = MaskedLM(
            mlm_probability=self.mntp_probability,
            mlm_probability_end=self.mntp_probability_end,
            masking=self.masking,
            mask_replace_prob=self.mask_replace_prob,
            random_replace_prob=self.random_replace_prob,
        )
        masked, targets, _ = masks.label(batch, labeling)
        first = np.isin(targets.index, batch.ragged.cu_seqlens)
        before = np.where(first, targets.index, targets.index - 1)
        return Labeled(masked, replace(targets, index=before, weight=targets.weight * ~first))

    def head(self, encoder: Encoder) -> MaskedLMHead:
        """Build BERT's masked-LM head, which here predicts the token after its row."""
        return MaskedLMHead(require_transformer(self.kind, encoder.config), encoder.embeddings.word, ahead=1)
