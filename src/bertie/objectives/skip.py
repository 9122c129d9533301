"""The objective of skip-thoughts: predict the sentence before and the sentence after from the vector of a sentence
(Kiros et al. 2015)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from bertie.base.contracts import FILLER, Batch, Ragged, Targets
from bertie.base.errors import UsageError
from bertie.model.encoder import Encoder
from bertie.model.encoders.gru import GruConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.skip_decoders import SkipThoughtHead
from bertie.objectives.initialization import Vectors, initialize_output
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Traits, Weight
from bertie.objectives.requirements import refuse_others, require_encoder


@dataclass(frozen=True)
class SkipThoughts(Objective):
    """Predict the words of the neighbors of each sentence from its vector and the words before."""

    facts: ClassVar = HeadFacts("skip-thoughts", "the sentences before and after")
    traits: ClassVar = Traits(predicts_text=True)
    initialize = initialize_output
    kind: Literal["skip"] = "skip"
    weight: Weight = 1.0
    blind: bool = False
    """Give the decoders zeros in place of the sentence's vector. This is a baseline for experiments: it shows what the
    decoders predict without the vector, and the encoder learns nothing."""
    initialization: Vectors = "random"
    """Initial word embeddings, which are the output matrix of the decoders, too. random: as in the model's paper. cooccurrence:
    co-occurrence vectors of the corpus, and log frequencies as output bias."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model does not encode sentences, or if the layout does not keep their neighbors."""
        require_encoder(self.kind, recipe.model, GruConfig)
        if recipe.layout.kind != "sentences":
            raise UsageError(
                f'objectives.skip needs layout.kind "sentences", and it is "{recipe.layout.kind}": change it'
            )
        refuse_others(self.kind, (other for other in recipe.objectives if other.kind != self.kind))

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Return the batch with each sentence as a sequence, and two targets per token: `label` and `weight` are [T, 2].

        The first target is the next token as the decoder of the next sentence predicts it, from the vector of the sentence
        before; the second one, as the decoder of the previous sentence does, from the vector of the sentence after. At the edges
        of a run of sentences, one of them weighs 0, and so do the last tokens of sentences and filler.
        """
        ids, tokenizer = batch.input_ids, labeling.tokenizer
        inside = np.flatnonzero((ids[:-1] == tokenizer.sep_id) & (ids[1:] == tokenizer.cls_id)) + 1
        starts = np.union1d(batch.ragged.cu_seqlens[:-1], inside)
        cu_seqlens = np.append(starts, len(ids)).astype(np.int32)
        run = np.searchsorted(batch.ragged.cu_seqlens, starts, side="right") - 1
        beside = np.append(run[1:] == run[:-1], False)
        beside[batch.example[run] == FILLER] = False
        lengths = np.diff(cu_seqlens)
        neighbors = np.stack([np.append(False, beside[:-1]), beside], 1)
        weight = np.repeat(neighbors, lengths, axis=0).astype(np.float32)
        weight[cu_seqlens[1:] - 1] = 0
        labels = np.append(ids[1:], 0)
        sentences = replace(
            batch,
            position_ids=(np.arange(len(ids)) - np.repeat(starts, lengths)).astype(np.int32),
            pair_label=batch.pair_label[run],
            example=batch.example[run],
            ragged=Ragged(cu_seqlens, batch.ragged.max_seqlen),
        )
        return Labeled(sentences, Targets(np.arange(len(ids)), np.stack([labels, labels], 1), weight))

    def head(self, encoder: Encoder) -> SkipThoughtHead:
        """Build the decoders, with the encoder's word embeddings. `check` has asked for its kind."""
        assert isinstance(encoder.config, GruConfig)
        return SkipThoughtHead(encoder.config, encoder.embeddings.word, self.blind)
