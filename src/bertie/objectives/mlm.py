"""Masked language modeling (Devlin et al. 2018, section 3.1, task 1). `masking` selects the tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import nn

from bertie.base.config import Count, DropoutRate, NotNegative, PositiveFraction, Range
from bertie.base.contracts import Batch, Targets
from bertie.base.errors import UsageError
from bertie.corpus.shards import Shards
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.vocabulary_heads import BringsVocabularyHead, MaskedLMHead
from bertie.model.initial_attention import hold_equal_words
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives.initialization import (
    Pending,
    initialize_embeddings,
    require_patterns,
    set_output_bias,
    set_pattern_weights,
)
from bertie.objectives.masking import MaskedRow, Masking, Selection, select, spans_of
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, SequenceShare, Traits, Weight
from bertie.objectives.requirements import require_both_sides, require_replacements, require_transformer
from bertie.tokenizers.tokenizer import Tokenizer


def masked_row(labeling: Labeling) -> MaskedRow:
    """Return what masked language modeling noted on a row. Raises ValueError if no objective masked it."""
    if MaskedLM.kind not in labeling.notes:
        raise ValueError("the row was not masked: masked language modeling must come first")
    return labeling.notes[MaskedLM.kind]


@dataclass(frozen=True)
class MaskedLM(Objective):
    """Select random tokens of every sequence, replace most of them by [MASK], and predict the original tokens."""

    facts: ClassVar = HeadFacts("masked LM", "masked words", "fill-mask", "masked")
    traits: ClassVar = Traits(predicts_text=True, masks=True)
    kind: Literal["mlm"] = "mlm"
    weight: Weight = 1.0
    share: SequenceShare = 1.0
    mlm_probability: PositiveFraction = 0.15
    """Share of tokens to predict, at least one per sequence. Special tokens are never selected."""
    mlm_probability_end: Annotated[float | None, Range(0, 1, above=True)] = None
    """Share of tokens to predict at the end of the run. The share changes linearly from mlm_probability. None: it is
    constant."""
    mlm_probability_eval: Annotated[float | None, Range(0, 1, above=True)] = None
    """Share of tokens to predict in the evaluation set. Recipes with the same share have comparable losses. None:
    mlm_probability."""
    masking: Masking = "tokens"
    """Selected units. tokens: single tokens, as in BERT. words: whole words. spans: spans of 1 to 10 words with a geometric
    distribution of lengths, replaced as a whole (SpanBERT). ngrams: 1 to 3 consecutive words, short ones more often
    (ALBERT)."""
    mask_replace_prob: NotNegative = 0.8
    """Share of the selected tokens that become [MASK]."""
    random_replace_prob: NotNegative = 0.1
    """Share of the selected tokens that become a random subword. The rest remain unchanged."""
    negatives: Count = 0
    """Entries of the vocabulary that the softmax of a forward pass has besides those to predict: half of them the most frequent
    ones, half drawn at random. It estimates the softmax over all, in less time. Evaluations are exact, and so is training on
    a GPU, where it would save little. 0: all entries."""
    unmasked_sequences: DropoutRate = 0.0
    """Share of sequences without any selected token, so that the model also sees texts as fine-tuning shows them."""
    initialization: Literal["random", "unigram", "cooccurrence", "patterns"] = "random"
    """Initial weights. random: as in BERT. unigram: the output bias is the log frequency of each subword instead of 0.
    cooccurrence: the same bias, and the word embeddings (the output matrix, too) are co-occurrence vectors of the
    corpus. patterns: the same, and heads of the first layers attend to the tokens beside each token and to equal words.
    The queries and keys of these heads are not trained. Requires rotary positions."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if the model cannot fill masks, or if it reads all the tokens that it predicts."""
        require_both_sides(self.kind, recipe.model)
        require_replacements(self)
        if self.initialization != "random" and not isinstance(recipe.model, TransformerConfig):
            raise UsageError(
                f'objectives.mlm.initialization "{self.initialization}" does not work with model.kind "{recipe.model.kind}": '
                'set it to "random"'
            )
        if self.initialization == "patterns":
            require_patterns(require_transformer(self.kind, recipe.model), recipe.objectives)

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Mask a row, and return the targets with the original tokens. The notes are a `MaskedRow`.

        P = ceil(share × T), with the share of the step, rounded up to eighths of the largest one: a GPU records few sizes.
        """
        start, end = self.mlm_probability, self.mlm_probability_end
        if labeling.held_out and self.mlm_probability_eval is not None:
            start, end = self.mlm_probability_eval, None
        end = start if end is None else end
        share = start + (end - start) * labeling.progress
        eighth = max(start, end) / 8
        capacity = math.ceil(eighth * math.ceil(share / eighth - 1e-9) * len(batch.input_ids))
        selection = select(self.masking, batch, labeling, share, capacity, self.unmasked_sequences)
        selected = selection.positions
        labels = batch.input_ids[selected]
        spare = (0, capacity - len(selected))
        weight = np.pad(np.ones(len(selected), np.float32), spare)
        targets = Targets(np.pad(selected, spare), np.pad(labels, spare), weight)
        spans = spans_of(selection, labels, capacity) if self.masking == "spans" else None
        masked = replace(batch, input_ids=self._replaced(batch.input_ids, selection, labeling.tokenizer, labeling.rng))
        return Labeled(masked, targets, MaskedRow(batch.input_ids, targets, spans))

    def _replaced(
        self, input_ids: np.ndarray, selection: Selection, tokenizer: Tokenizer, rng: np.random.Generator
    ) -> np.ndarray:
        """Return a copy with [MASK] and random subwords at selected tokens. A span gets the same kind of replacement."""
        replaced, selected = input_ids.copy(), selection.positions
        if self.masking == "spans":
            draw = rng.random(int(selection.unit[-1]) + 1 if len(selected) else 0)[selection.unit]
        else:
            draw = rng.random(len(selected))
        random_ids = rng.choice(tokenizer.ordinary_ids, len(selected))
        as_random = (draw >= self.mask_replace_prob) & (draw < self.mask_replace_prob + self.random_replace_prob)
        replaced[selected[draw < self.mask_replace_prob]] = tokenizer.mask_id
        replaced[selected[as_random]] = random_ids[as_random]
        return replaced

    def initialize(self, model: Model, shards: Shards, begun: Pending | None = None) -> None:
        """Set initial weights in place, as `initialization` says. Arguments as of `initialize_embeddings`."""
        head = model.heads[self.kind]
        if not isinstance(head, MaskedLMHead) or self.initialization == "random":
            return
        set_output_bias(head.bias, shards.train)
        initialize_embeddings(self, model, shards, begun)
        if self.initialization == "patterns" and isinstance(model.encoder, TransformerEncoder):
            set_pattern_weights(model.encoder, head, shards.tokenizer)

    def hold(self, model: Model, tokenizer: Tokenizer, optimizer: torch.optim.Optimizer) -> None:
        """Keep the queries and keys of attention to equal words."""
        if self.initialization == "patterns" and isinstance(model.encoder, TransformerEncoder):
            hold_equal_words(model.encoder, [tokenizer.cls_id, tokenizer.sep_id], optimizer)

    def head(self, encoder: Encoder) -> nn.Module:
        """Build the head: BERT's, with the encoder's word embeddings as its output matrix, or the encoder's own."""
        if isinstance(encoder, BringsVocabularyHead):
            return encoder.vocabulary_head("masked")
        word = encoder.embeddings.word
        return MaskedLMHead(require_transformer(self.kind, encoder.config), word, negatives=self.negatives)
