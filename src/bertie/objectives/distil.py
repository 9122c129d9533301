"""Knowledge distillation, the objective of DistilBERT (Sanh et al. 2019): imitate a larger model, the teacher.

The recipe has the objective `mlm`, whose head predicts the tokens, and after it `distil`. The model is the student. Reading
the teacher and comparing it with the student is the work of `pretraining/teacher.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie.batches.layouts import Layout
from bertie.contracts import FILLER, Batch, Targets
from bertie.errors import UsageError, require_range
from bertie.model.distillation import DistillationHead
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.model import Model
from bertie.objectives.mlm import MaskedLM
from bertie.objectives.requirements import require_transformer
from bertie.text.shards import Shards
from bertie.text.tokenizer import Tokenizer

PARTNERS = ("mlm", "nsp", "sbo", "distil")


@dataclass(frozen=True)
class Distillation:
    """Imitate a teacher: its distribution over the vocabulary at each token, and its last hidden states."""

    kind: Literal["distil"] = "distil"
    weight: float = 1.0
    """Weight of this loss in the total loss."""
    teacher: str = ""
    """Model to imitate: run folder, checkpoint folder or hub id. It needs a masked-LM head and the vocabulary of the
    shards."""
    temperature: float = 2.0
    """Divides the logits of both models before the softmax. A higher temperature shows more of the teacher's less probable
    tokens."""
    soft_weight: float = 5.0
    """Weight of the soft targets in this loss: the Kullback-Leibler divergence of the distributions × temperature²."""
    cosine_weight: float = 1.0
    """Weight of the hidden states in this loss: 1 - the cosine of the last hidden states, which must have equal sizes. 0:
    do not compare them."""
    positions: Literal["all", "masked"] = "all"
    """Tokens at which the models are compared. masked: only those that the objective mlm predicts, which is cheaper."""
    initialization: Literal["teacher", "random"] = "teacher"
    """Initial weights, unless init_from names others. teacher: its embeddings, its masked-LM head, and as many of its
    layers as the model has, evenly spaced from the first to the last one; all other sizes must be equal. random: as in
    BERT."""

    def __post_init__(self) -> None:
        require_range("objectives.distil", self, "weight", "cosine_weight", low=0)
        require_range("objectives.distil", self, "temperature", "soft_weight", low=0, above=True)

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[object, ...]) -> None:  # noqa: ARG002
        """Raise UsageError if there is no masked-LM head to train, or if another objective does not read masks."""
        require_transformer(self.kind, model)
        kinds = [getattr(other, "kind", "") for other in objectives]
        before = objectives[: kinds.index(self.kind) if self.kind in kinds else None]
        masked = next((other for other in before if isinstance(other, MaskedLM)), None)
        if masked is None:
            raise UsageError(
                "objectives.distil compares the predictions of masked language modeling with a teacher's: put an objective "
                'with kind = "mlm" before it'
            )
        if others := [kind for kind in kinds if kind not in PARTNERS]:
            raise UsageError(
                f"objectives.distil lets a teacher read the same masked text, which objectives.{others[0]} is not made for: "
                f"remove objectives.{others[0]} or objectives.distil"
            )
        if self.initialization == "teacher" and masked.initialization != "random":
            raise UsageError(
                f'objectives.mlm.initialization is "{masked.initialization}" and objectives.distil.initialization is '
                '"teacher": set one of them to "random"'
            )

    def label(
        self,
        batch: Batch,
        tokenizer: Tokenizer,  # noqa: ARG002
        rng: np.random.Generator,  # noqa: ARG002
        progress: float = 0.0,  # noqa: ARG002
    ) -> tuple[Batch, Targets]:
        """Return the batch unchanged, and the positions at which the models are compared. The labels have no meaning.

        With `positions = "all"`, there is one target per token (P = T). Filler weighs 0. Otherwise, the targets are those of
        masked language modeling.

        Raises:
            ValueError: If no objective has masked the batch.
        """
        if batch.masked_targets is None:
            raise ValueError("the batch has no targets of masked language modeling")
        if self.positions == "masked":
            return batch, batch.masked_targets
        weight = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32)
        return batch, Targets(np.arange(len(weight)), np.zeros(len(weight), np.int32), weight)

    def initialize(self, model: Model, shards: Shards) -> None:  # noqa: ARG002
        """Copy weights of the teacher to the student, as `initialization` says."""
        head = model.heads[self.kind]
        if isinstance(head, DistillationHead) and self.initialization == "teacher":
            head.copy_teacher()

    def head(self, config: EncoderConfig, encoder: Encoder) -> DistillationHead:  # noqa: ARG002
        """Build the head, which has to be connected with a teacher."""
        return DistillationHead(self.temperature, self.soft_weight, self.cosine_weight)
