"""The teacher of knowledge distillation: reading it, refusing one that does not fit, and connecting it with its student."""

from __future__ import annotations

from dataclasses import fields

from bertie.checkpoints.folder import Checkpoint, load_weights, read_checkpoint
from bertie.errors import UsageError
from bertie.model.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.distillation import DistillationHead, MaskedModel
from bertie.model.model import Model
from bertie.model.transformer import TransformerEncoder
from bertie.model.vocabulary_heads import MaskedLMHead
from bertie.objectives import Distillation
from bertie.pretraining.recipe import PretrainConfig
from bertie.text.tokenizer import Tokenizer

# Settings in which a student may differ from the teacher whose weights it copies: sizes of which it takes a part, and
# settings that have no weights in pre-training.
FREE = (
    *("num_hidden_layers", "max_position_embeddings", "type_vocab_size", "vocab_size", "pooler_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "embedding_size"),
)


def read_teacher(config: PretrainConfig, tokenizer: Tokenizer | None) -> Checkpoint | None:
    """Read the teacher that a recipe names; None without distillation.

    Args:
        config: The recipe.
        tokenizer: The tokenizer of the training text; None: it is not known yet, and is not compared.

    Raises:
        UsageError: There is no such model, or it does not fit the student, the text or the settings.
        UserError: The model is damaged.
    """
    found = [(n, each) for n, each in enumerate(config.objectives) if isinstance(each, Distillation)]
    if not found:
        return None
    [(number, objective)] = found
    where = f"objectives.distil.teacher {objective.teacher}"
    if not objective.teacher:
        raise UsageError(
            f"objectives.distil.teacher is empty: name a run, a checkpoint folder or a hub id with "
            f"--objectives.{number}.teacher"
        )
    try:
        checkpoint = read_checkpoint(objective.teacher)
    except UsageError as error:
        raise UsageError(f"objectives.distil.teacher: {error}") from error
    teacher, own = checkpoint.config, checkpoint.tokenizer
    if tokenizer and (own.vocabulary, own.merges) != (tokenizer.vocabulary, tokenizer.merges):
        raise UsageError(
            f"{where} has another vocabulary than the shards: prepare the text with --tokenizer {objective.teacher}, or "
            "take another teacher"
        )
    if checkpoint.generator is not None:
        raise UsageError(f"{where} is an ELECTRA, which itself predicts no tokens: take a model without a generator")
    if not isinstance(teacher, TransformerConfig) or "mlm" not in checkpoint.heads:
        raise UsageError(f"{where} has no masked-LM head: take a model that was pre-trained with the objective mlm")
    longest = max(phase.layout.max_length for phase in config.resolved_phases)
    if longest > teacher.max_position_embeddings:
        raise UsageError(
            f"{where} reads at most {teacher.max_position_embeddings} tokens, and layout.max_length is {longest}: lower "
            "it, or take another teacher"
        )
    _require_sizes(objective, config, teacher, where)
    return checkpoint


def _require_sizes(objective: Distillation, config: PretrainConfig, teacher: TransformerConfig, where: str) -> None:
    """Raise UsageError if the model and the teacher have sizes that cannot be compared or copied."""
    student = config.model
    if objective.cosine_weight and student.hidden_size != teacher.hidden_size:
        copied = objective.initialization == "teacher" and not config.init_from
        both = ' and objectives.distil.initialization to "random"' if copied else ""
        raise UsageError(
            f"model.hidden_size is {student.hidden_size} and that of {where} is {teacher.hidden_size}, so their hidden "
            f"states cannot be compared: set objectives.distil.cosine_weight to 0{both}, or the sizes to the same"
        )
    if objective.initialization != "teacher" or config.init_from:
        return
    assert isinstance(student, TransformerConfig)
    names = [field.name for field in fields(TransformerConfig) if field.name not in FREE]
    different = [name for name in names if getattr(student, name) != getattr(teacher, name)]
    larger = [n for n in ("num_hidden_layers", "max_position_embeddings") if getattr(student, n) > getattr(teacher, n)]
    if student.type_vocab_size not in (0, teacher.type_vocab_size):
        different.append("type_vocab_size")
    if student.embedding_width != teacher.embedding_width:
        different.append("embedding_size")
    for name in (*different, *larger):
        raise UsageError(
            f"model.{name} is {getattr(student, name)} and that of {where} is {getattr(teacher, name)}, so its weights "
            'cannot be copied: set objectives.distil.initialization to "random", or choose another size'
        )


def connect_teacher(model: Model, checkpoint: Checkpoint, attention: AttentionKind = "automatic") -> None:
    """Build the teacher, and connect it with the distillation head of the student.

    Args:
        model: The student, with the objectives mlm and distil.
        checkpoint: The teacher, as `read_teacher` returns it.
        attention: The attention implementation of the teacher.
    """
    student, head, config = model.heads["mlm"], model.heads["distil"], checkpoint.config
    assert isinstance(head, DistillationHead)
    assert isinstance(student, MaskedLMHead)
    assert isinstance(model.encoder, TransformerEncoder)
    assert isinstance(config, TransformerConfig)
    encoder = TransformerEncoder(config, attention)
    theirs = MaskedModel(encoder, MaskedLMHead(config, encoder.embeddings.word))
    load_weights(Model(encoder, {"mlm": theirs.head}), checkpoint)
    head.connect(MaskedModel(model.encoder, student), theirs)
