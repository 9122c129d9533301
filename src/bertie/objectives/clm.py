"""Causal language modeling, the objective of GPT: predict each token from the tokens before it (Radford et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import nn

from bertie.base.config import Range, ranges
from bertie.base.contracts import Batch
from bertie.base.errors import UsageError
from bertie.batches.layouts import Layout
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.vocabulary_heads import BringsVocabularyHead, VocabularyHead, next_token_targets
from bertie.objectives.initialization import Vectors, counted_embeddings, initialize_embeddings
from bertie.objectives.objective import Labeled, Labeling, Objective, Traits
from bertie.objectives.requirements import require_vocabulary_head


@dataclass(frozen=True)
class CausalLM:
    """Predict the next token at every position of a sequence. The model must be causal."""

    facts: ClassVar = HeadFacts("causal LM", "the next word", "text-generation", "next")
    traits: ClassVar = Traits(predicts_text=True)
    counted = counted_embeddings
    initialize = initialize_embeddings
    kind: Literal["clm"] = "clm"
    weight: Annotated[float, Range(0)] = 1.0
    """Weight of this loss in the total loss."""
    allow_bidirectional: bool = False
    """Allow a model that is not causal. It sees the tokens that it predicts, so its loss goes to zero and it learns
    nothing. This is for experiments."""
    initialization: Vectors = "random"
    """Initial word embeddings, which are the output matrix, too. random: as in the model's paper. cooccurrence: co-occurrence
    vectors of the corpus."""

    __post_init__ = ranges("objectives.clm")

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[Objective, ...]) -> None:  # noqa: ARG002
        """Raise UsageError if the model is not causal, or if masks replace the tokens to predict."""
        require_vocabulary_head(self.kind, "next", model)
        if model.embedding_width != model.hidden_size:
            raise UsageError(
                f"objectives.clm predicts with the matrix of the word embeddings, and model.embedding_size is "
                f"{model.embedding_width}: set it to 0, which means model.hidden_size"
            )
        if not model.causal and not self.allow_bidirectional:
            raise UsageError(
                "objectives.clm predicts the next token, which a model with model.causal = false sees: set model.causal "
                "to true, or objectives.clm.allow_bidirectional to true if that is the experiment"
            )
        for other in objectives:
            if other.traits.masks:
                raise UsageError(
                    f"objectives.clm predicts the tokens of the text, and objectives.{other.kind} masks some of them: remove "
                    "one of the two"
                )

    def label(self, batch: Batch, given: Labeling) -> Labeled:  # noqa: ARG002
        """Return the batch unchanged, and one target per token (P = T): the next token."""
        return Labeled(batch, next_token_targets(batch))

    def head(self, config: EncoderConfig, encoder: Encoder) -> nn.Module:  # noqa: ARG002
        """Build the head: GPT's, with the encoder's word embeddings as its output matrix, or the encoder's own."""
        if isinstance(encoder, BringsVocabularyHead):
            return encoder.vocabulary_head("next")
        return VocabularyHead(encoder.embeddings.word)
