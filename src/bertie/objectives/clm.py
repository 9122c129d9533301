"""Causal language modeling, the objective of GPT: predict each token from the tokens before it (Radford et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from bertie.base.contracts import Batch
from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.vocabulary_heads import (
    BringsVocabularyHead,
    MaskedLMHead,
    VocabularyHead,
    next_token_targets,
)
from bertie.objectives.initialization import Vectors
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, SequenceShare, Traits, Weight
from bertie.objectives.requirements import (
    refuse_others,
    require_both_sides,
    require_transformer,
    require_vocabulary_head,
)


@dataclass(frozen=True)
class CausalLM(Objective):
    """Predict the next token at every position of a sequence. The model must be causal, or `share` below 1: then the tokens of
    these sequences see only earlier ones, and the model learns to read both ways (GPT-BERT, Charpentier and Samuel 2024)."""

    facts: ClassVar = HeadFacts("causal LM", "the next word", "text-generation", "next")
    traits: ClassVar = Traits(predicts_text=True, reads_left=True)
    kind: Literal["clm"] = "clm"
    weight: Weight = 1.0
    share: SequenceShare = 1.0
    allow_bidirectional: bool = False
    """Allow a model that is not causal. It sees the tokens that it predicts, so its loss goes to zero and it learns
    nothing. This is for experiments."""
    initialization: Vectors = "random"
    """Initial word embeddings, which are the output matrix, too. random: as in the model's paper. cooccurrence: co-occurrence
    vectors of the corpus."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model is not causal, or if masks replace the tokens to predict."""
        require_vocabulary_head(self.kind, "next", recipe.model)
        if recipe.model.embedding_width != recipe.model.hidden_size:
            raise UsageError(
                f"objectives.clm needs model.embedding_size 0, and it is {recipe.model.embedding_width}: set it to 0"
            )
        if self.share < 1:
            require_both_sides(self.kind, model := require_transformer(self.kind, recipe.model))
            if model.norm_position != "modern" or model.relative_bias_buckets:
                raise UsageError(
                    "objectives.clm.share needs model.norm_position modern and no relative_bias_buckets: change one of them"
                )
            refuse_others(self.kind, (other for other in recipe.objectives if other.traits.reads_pairs))
            return
        if not recipe.model.causal and not self.allow_bidirectional:
            raise UsageError(
                "objectives.clm needs model.causal true, or a share below 1: set one of them (or, for an experiment, "
                "objectives.clm.allow_bidirectional)"
            )
        refuse_others(self.kind, (other for other in recipe.objectives if other.traits.masks))

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:  # noqa: ARG002
        """Return the batch unchanged, and one target per token (P = T): the next token."""
        return Labeled(batch, next_token_targets(batch))

    def head(self, encoder: Encoder) -> nn.Module:
        """Build the head: GPT's, with the encoder's word embeddings as its output matrix, or the encoder's own. One of
        ModernBERT's form has the layers of the masked-LM head before it."""
        if isinstance(encoder, BringsVocabularyHead):
            return encoder.vocabulary_head("next")
        config = encoder.config
        if isinstance(config, TransformerConfig) and config.norm_position == "modern":
            return MaskedLMHead(config, encoder.embeddings.word)
        return VocabularyHead(encoder.embeddings.word)
