"""A pre-training objective of your own: random token substitution (Di Liello, Gabburo and Moschitti 2022).

Some tokens are replaced by random ones, and the encoder tells which. That is ELECTRA without a generator: no [MASK] in the
text, and no logits over the vocabulary, so a step costs less than one of masked language modeling.

    python examples/own_objective.py [TEXT]     # half a minute of pre-training, on Python's documentation without TEXT

In a recipe, in the folder examples:

    extends = "modern-mini"

    [[objectives]]
    kind = "own_objective:TokenSubstitution"

P predictions, D hidden size
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data import topics
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor, nn

import bertie
from bertie.base.config import PositiveFraction
from bertie.base.contracts import Batch, Hidden, Loss, Targets
from bertie.model.encoder import Encoder
from bertie.model.head_facts import HeadFacts
from bertie.model.losses.losses import cross_entropy
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Traits, Weight
from bertie.objectives.requirements import refuse_others


class SubstitutionHead(nn.Module):
    """Two outputs per token: the logits of "original" and "replaced"."""

    def __init__(self, width: int):
        super().__init__()
        self.out = nn.Linear(width, 2)

    def logits(self, x_PD: Tensor) -> Tensor:
        return self.out(x_PD)

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return cross_entropy(self.logits(hidden.last[targets.index]), targets)


@dataclass(frozen=True)
class TokenSubstitution(Objective):
    """Replace random tokens by other ones, and predict for every token whether it was replaced."""

    facts: ClassVar = HeadFacts("random token substitution", "which tokens were replaced")
    traits: ClassVar = Traits(masks=True)
    kind: Literal["rts"] = "rts"
    weight: Weight = 1.0
    probability: PositiveFraction = 0.15
    """Probability that a token is replaced. Special tokens never are."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if another objective changes the text, too: it would predict the replacements."""
        refuse_others(
            self.kind, (other for other in recipe.objectives if other.traits.masks and other.kind != self.kind)
        )

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Return the row with replacements, and one target per token (P = T). Special tokens and filler weigh 0."""
        before, rng = batch.input_ids, labeling.rng
        ordinary = ~np.isin(before, labeling.tokenizer.special_ids)
        drawn = rng.choice(labeling.tokenizer.ordinary_ids, len(before)).astype(before.dtype)
        after = np.where(ordinary & (rng.random(len(before)) < self.probability), drawn, before)
        targets = Targets(np.arange(len(before)), (after != before).astype(np.int64), ordinary.astype(np.float32))
        return Labeled(replace(batch, input_ids=after), targets)

    def head(self, encoder: Encoder) -> SubstitutionHead:
        return SubstitutionHead(encoder.config.hidden_size)


def main(text: str = "") -> None:
    """Pre-train a small model on a file or a folder, and say how far it tells replaced tokens from original ones."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not text:
            text = str(folder / "topics.txt")
            Path(text).write_text("\n\n".join(topics.topics.values()), encoding="utf-8")
        tokenizer = bertie.train_tokenizer(text, folder / "tokenizer", vocab_size=4000)
        bertie.prepare(text, tokenizer, folder / "shards", eval_share=0.05)
        training = {"steps": 120, "eval_every": 60}
        recipe = {"extends": "modern-tiny", "objectives": [TokenSubstitution()], "training": training}
        result = bertie.pretrain(recipe, folder / "shards", folder / "run")
        print(f"told apart: {result['eval']['rts_accuracy']:.1%} of held-out tokens, of which 85 % are original")
        print(f"vectors: {bertie.load(folder / 'run').embed(['a text', 'another text']).shape}")


if __name__ == "__main__":
    main(*sys.argv[1:])
