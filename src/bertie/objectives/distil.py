"""Knowledge distillation, the objective of DistilBERT (Sanh et al. 2019): imitate a larger model, the teacher.

The recipe has the objective `mlm`, whose head predicts the tokens, and after it `distil`. The model is the student.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import numpy as np

from bertie.base.config import AboveZero, NotNegative
from bertie.base.contracts import FILLER, Batch, Targets
from bertie.base.errors import UsageError
from bertie.checkpoints.read import Checkpoint, load_weights, read_checkpoint
from bertie.corpus.shards import Shards
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.distillation import DistillationHead, MaskedModel
from bertie.model.heads.vocabulary_heads import MaskedLMHead
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.objectives.initialization import Pending
from bertie.objectives.mlm import MaskedLM, masked_row
from bertie.objectives.objective import Labeled, Labeling, Objective, Recipe, Weight
from bertie.objectives.requirements import before, refuse_others, require_transformer
from bertie.tokenizers.tokenizer import Tokenizer

PARTNERS = ("mlm", "nsp", "sbo", "distil")
# Settings in which a student may differ from the teacher whose weights it copies: sizes of which it takes a part, and
# settings that have no weights in pre-training.
FREE = [
    "num_hidden_layers",
    "max_position_embeddings",
    "type_vocab_size",
    "vocab_size",
    "pooler_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "head_dropout_prob",
    "initializer_range",
    "embedding_size",
]


@dataclass(frozen=True)
class Distillation(Objective):
    """Imitate a teacher: its distribution over the vocabulary at each token, and its last hidden states."""

    facts: ClassVar = HeadFacts("distillation", "what its teacher predicts")
    kind: Literal["distil"] = "distil"
    weight: Weight = 1.0
    teacher: str = ""
    """Model to imitate: run folder, checkpoint folder or hub id. It needs a masked-LM head and the vocabulary of the
    shards."""
    temperature: AboveZero = 2.0
    """Divides the logits of both models before the softmax. A higher temperature shows more of the teacher's less probable
    tokens."""
    soft_weight: AboveZero = 5.0
    """Weight of the soft targets in this loss: the Kullback-Leibler divergence of the distributions × temperature²."""
    cosine_weight: NotNegative = 1.0
    """Weight of the hidden states in this loss: 1 - the cosine of the last hidden states, which must have equal sizes. 0:
    do not compare them."""
    positions: Literal["all", "masked"] = "all"
    """Tokens at which the models are compared. masked: only the tokens that the objective mlm predicts, which is
    cheaper."""
    initialization: Literal["teacher", "random"] = "teacher"
    """Initial weights, unless init_from names others. teacher: its embeddings, its masked-LM head, and as many of its
    layers as the model has, evenly spaced from the first to the last one; all other sizes must be equal. random: as in
    BERT."""

    def check(self, recipe: Recipe) -> None:
        """Raise UsageError if there is no masked-LM head to train, or if another objective does not read masks."""
        require_transformer(self.kind, recipe.model)
        masked = next((other for other in before(self.kind, recipe.objectives) if isinstance(other, MaskedLM)), None)
        if masked is None:
            raise UsageError('objectives.distil needs an objective with kind = "mlm" before it: add it')
        refuse_others(self.kind, (other for other in recipe.objectives if other.kind not in PARTNERS))
        if self.initialization == "teacher" and masked.initialization != "random":
            raise UsageError(
                'objectives.mlm.initialization does not work with objectives.distil.initialization: set one to "random"'
            )

    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Return the batch unchanged, and the positions at which the models are compared. The labels have no meaning.

        With `positions = "all"`, there is one target per token (P = T). Filler weighs 0. Otherwise, the targets are the
        same as in masked language modeling.
        """
        if self.positions == "masked":
            return Labeled(batch, masked_row(labeling).targets)
        weight = np.repeat(batch.example != FILLER, batch.ragged.lengths).astype(np.float32)
        return Labeled(batch, Targets(np.arange(len(weight)), np.zeros(len(weight), np.int32), weight))

    def initialize(self, model: Model, shards: Shards, begun: Pending | None = None) -> None:  # noqa: ARG002
        """Copy weights of the teacher to the student, as `initialization` says."""
        head = model.heads[self.kind]
        if isinstance(head, DistillationHead) and self.initialization == "teacher":
            head.copy_teacher()

    def head(self, encoder: Encoder) -> DistillationHead:  # noqa: ARG002
        """Build the head, which has to be connected with a teacher."""
        return DistillationHead(self.temperature, self.soft_weight, self.cosine_weight)

    def read_teacher(
        self, student: EncoderConfig, longest: int, continues: bool, tokenizer: Tokenizer | None, flag: str
    ) -> Checkpoint:
        """Read the teacher, and refuse one that does not fit."""
        where = f"objectives.distil.teacher {self.teacher}"
        if not self.teacher:
            raise UsageError(f"objectives.distil.teacher is empty: name a model with {flag}.teacher")
        try:
            checkpoint = read_checkpoint(self.teacher)
        except UsageError as error:
            raise UsageError(f"objectives.distil.teacher: {error}") from error
        teacher, theirs = checkpoint.config, checkpoint.tokenizer
        if tokenizer and (theirs.vocabulary, theirs.merges) != (tokenizer.vocabulary, tokenizer.merges):
            raise UsageError(
                f"{where} has a different vocabulary from the shards: prepare them with --tokenizer {self.teacher}"
            )
        has_head = MaskedLM.kind in checkpoint.heads and checkpoint.generator is None
        if not isinstance(teacher, TransformerConfig) or not has_head:
            raise UsageError(f"{where} has no masked-LM head: take a model that was pre-trained with the objective mlm")
        if longest > teacher.max_position_embeddings:
            raise UsageError(
                f"{where} reads at most {teacher.max_position_embeddings} tokens: lower layout.max_length {longest}"
            )
        self._require_comparable(student, teacher, where, copies=self.initialization == "teacher" and not continues)
        return checkpoint

    def _require_comparable(self, student: EncoderConfig, teacher: TransformerConfig, where: str, copies: bool) -> None:
        """Raise UsageError if the student and the teacher have sizes that cannot be compared or copied."""
        if self.cosine_weight and student.hidden_size != teacher.hidden_size:
            raise UsageError(
                f"model.hidden_size is {student.hidden_size}, but {teacher.hidden_size} in {where}: change it, or set "
                'objectives.distil.cosine_weight to 0 and objectives.distil.initialization to "random"'
            )
        if not copies:
            return
        student = require_transformer(self.kind, student)
        names = [field.name for field in fields(TransformerConfig) if field.name not in FREE]
        different = [name for name in names if getattr(student, name) != getattr(teacher, name)]
        limits = ("num_hidden_layers", "max_position_embeddings")
        different += [name for name in limits if getattr(student, name) > getattr(teacher, name)]
        if student.type_vocab_size not in (0, teacher.type_vocab_size):
            different.append("type_vocab_size")
        if student.embedding_width != teacher.embedding_width:
            different.append("embedding_size")
        for name in different:
            raise UsageError(
                f"model.{name} is {getattr(student, name)}, but {getattr(teacher, name)} in {where}: change it, or set "
                'objectives.distil.initialization to "random"'
            )

    def connect_teacher(self, model: Model, teacher: Checkpoint, attention: AttentionKind = "automatic") -> None:
        """Build the teacher, and connect it with the head of this objective."""
        student, head, config = model.heads[MaskedLM.kind], model.heads[self.kind], teacher.config
        assert isinstance(head, DistillationHead)
        assert isinstance(student, MaskedLMHead)
        assert isinstance(model.encoder, TransformerEncoder)
        assert isinstance(config, TransformerConfig)
        encoder = TransformerEncoder(config, attention)
        theirs = MaskedModel(encoder, MaskedLMHead(config, encoder.embeddings.word))
        load_weights(Model(encoder, {MaskedLM.kind: theirs.head}), teacher)
        head.connect(MaskedModel(model.encoder, student), theirs)
