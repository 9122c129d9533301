"""Replaced token detection, the objective of ELECTRA (Clark et al. 2020).

A small masked language model, the generator, replaces masked tokens by samples from its predictions. The encoder tells for
each token whether it is the original one. The recipe has the objective `mlm`, which trains the generator, and after it
`rtd`, which trains the encoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from bertie.base.config import Count, PositiveFraction
from bertie.base.contracts import Batch, ReplacementTargets
from bertie.base.errors import UsageError
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.encoders.electra import generator_config
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import ReplacedTokenHead
from bertie.objectives.mlm import masked_row
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Weight
from bertie.objectives.requirements import before, refuse_others, require_transformer

PARTNERS = ("mlm", "nsp", "rtd")


@dataclass(frozen=True)
class ReplacedToken(Objective):
    """Predict which tokens a generator has replaced. The objective mlm, which must come first, trains the generator."""

    facts: ClassVar = HeadFacts("replaced token detection", "which tokens were replaced", shape="replaced")
    kind: Literal["rtd"] = "rtd"
    weight: Weight = 50.0
    generator_size: PositiveFraction = 0.25
    """Width of the generator, as a fraction of the model's: hidden size, attention heads and feed-forward size. The
    model and the generator share the embeddings."""
    generator_layers: Count = 0
    """Number of layers of the generator; 0: as many as the model."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if there is no generator to train, or if another objective needs the masks."""
        require_transformer(self.kind, recipe.model)
        if not any(other.kind == "mlm" for other in before(self.kind, recipe.objectives)):
            raise UsageError('objectives.rtd needs a generator: put an objective with kind = "mlm" before it')
        refuse_others(self.kind, (other for other in recipe.objectives if other.kind not in PARTNERS))

    def generator(self, config: EncoderConfig) -> TransformerConfig:
        """Return the configuration of the generator. Its heads have an even size, which rotary positions need."""
        model = require_transformer(self.kind, config)
        heads = max(1, round(model.num_attention_heads * self.generator_size))
        width = heads * max(2, 2 * round(model.hidden_size * self.generator_size / heads / 2))
        inner = max(1, round(model.intermediate_size * width / model.hidden_size))
        sizes = {"hidden_size": width, "num_attention_heads": heads, "intermediate_size": inner}
        return generator_config(model, sizes | {"num_hidden_layers": self.generator_layers or model.num_hidden_layers})

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Return the batch unchanged, and one target per token (P = T). Special tokens and filler weigh 0."""
        original_ids = masked_row(labeling).original_ids
        ordinary = ~np.isin(original_ids, labeling.tokenizer.special_ids)
        draw = labeling.rng.random(len(ordinary), np.float32)
        weight = ordinary.astype(np.float32)
        return Labeled(batch, ReplacementTargets(np.arange(len(ordinary)), original_ids, weight, draw))

    def head(self, encoder: Encoder) -> ReplacedTokenHead:
        """Build the head of the encoder. The generator has the head of masked language modeling."""
        return ReplacedTokenHead(require_transformer(self.kind, encoder.config))
