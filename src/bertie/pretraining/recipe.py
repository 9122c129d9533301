"""All that decides a pre-training: what a TOML file of configs/pretrain says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bertie import runtime
from bertie.batches.layouts import Layout
from bertie.errors import UsageError, require_range
from bertie.model.attention import Kind
from bertie.model.config import BertConfig
from bertie.objectives import Objective
from bertie.pretraining.phases import Phase, ResolvedPhase, resolve_phases
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import Optimizer
from bertie.training.schedules import Schedule


@dataclass(frozen=True)
class PretrainTraining:
    steps: int
    """Optimizer steps in all."""
    batch_size: int
    """Sequences of full length whose tokens make up one step."""
    learning_rate: float
    """The highest the schedule reaches."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    row_tokens: int = 4096
    """Tokens of a row; a step is as many rows as its batch needs, and ranks and forward passes share them out."""
    micro_batch: int = 0
    """Rows of one forward pass; 0: on a GPU as many as its memory has room for, elsewhere 1."""
    precision: runtime.Precision = "auto"
    """auto: bf16 where it is in hardware and faster."""
    eval_every: int = 500
    """Steps between evaluations on held-out documents; 0: only at the end."""
    max_eval_tokens: int = 131072
    """Most tokens of held-out text to evaluate on."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    checkpoint_minutes: float = 0.0
    """Minutes after which a checkpoint is written even so; 0: by steps alone."""
    keep_checkpoints: int = 2
    """The newest, beside the best one (by the evaluation before it)."""
    max_skipped_steps: int = 10
    """Steps in a row without a finite loss and gradient (each is skipped) after which the run stops."""
    attention: Kind = "automatic"
    """automatic: the fastest for the machine and the recipe; varlen: on a GPU, in bf16, where no attention dropout is asked."""
    compile: bool = True
    """Whether on a GPU the layers are compiled, which takes a while when a run begins or resumes."""
    activation_checkpointing: bool = False
    """Keep only what goes into each layer and compute the rest again: far less memory, a third more work."""
    tensorboard: bool = False
    """Write RUN/tensorboard too (pip install bertie[track])."""
    workers: int = 0
    """Processes that prepare steps ahead; 0: none."""

    def __post_init__(self) -> None:
        require_range(
            "training", self, "steps", "batch_size", "row_tokens", "max_eval_tokens", "keep_checkpoints", low=1
        )
        require_range("training", self, "learning_rate", "eval_every", "checkpoint_every", "checkpoint_minutes", low=0)
        require_range("training", self, "micro_batch", low=0)
        require_range("training", self, "workers", low=0, high=64)
        require_range("training", self, "max_skipped_steps", low=1)
        require_range("training", self, "max_grad_norm", low=0, above=True)


@dataclass(frozen=True)
class PretrainConfig:
    model: BertConfig
    layout: Layout
    objectives: tuple[Objective, ...]
    optimizer: Optimizer
    schedule: Schedule
    training: PretrainTraining
    phases: tuple[Phase, ...] = ()
    """Parts of the run with other lengths and batches; none: the layout's and training's throughout."""
    seed: int = 0
    init_from: str = ""
    """A run, checkpoint folder or hub id whose weights, in whose size, training goes on from; none: new weights."""
    init_optimizer: Literal["fresh", "kept"] = "fresh"
    """kept: with the state of that checkpoint's optimizer too."""

    def __post_init__(self) -> None:
        require_range("", self, "seed", low=0)
        if self.init_optimizer == "kept" and not self.init_from:
            raise UsageError("init_optimizer is kept, but init_from does not say of which checkpoint: give that too")
        if self.training.attention == "varlen" and self.model.attention_probs_dropout_prob > 0:
            raise UsageError(
                f"training.attention is varlen, which has no dropout, and model.attention_probs_dropout_prob is "
                f"{self.model.attention_probs_dropout_prob:g}: set that to 0, or training.attention to automatic"
            )

    @property
    def resolved_phases(self) -> list[ResolvedPhase]:
        """The phases, worked out. Errors: UsageError."""
        settings = self.training
        return resolve_phases(self.phases, self.layout, settings.batch_size, settings.row_tokens, settings.steps)


def with_vocab_size(config: PretrainConfig, tokenizer: Tokenizer) -> PretrainConfig:
    """The recipe with the tokenizer's vocabulary. Errors: UsageError where it contradicts that, or itself."""
    model = config.model
    if model.vocab_size not in (0, tokenizer.size):
        raise UsageError(
            f"model.vocab_size is {model.vocab_size} and the shards' vocabulary has {tokenizer.size} entries: "
            "leave it out, or prepare the text with that vocabulary"
        )
    longest = max(leg.layout.max_length for leg in config.resolved_phases)
    if longest > model.max_position_embeddings:
        where = "layout.max_length" if longest == config.layout.max_length else "phases: max_length"
        raise UsageError(
            f"{where} {longest} is more than model.max_position_embeddings {model.max_position_embeddings}"
        )
    if model.type_vocab_size < 2:
        raise UsageError(f"model.type_vocab_size is {model.type_vocab_size}: pairs of texts need 2")
    kinds = [objective.kind for objective in config.objectives]
    if not kinds or len(set(kinds)) < len(kinds):
        raise UsageError(f"objectives is {kinds}: give one or more, each of another kind")
    return replace(config, model=replace(model, vocab_size=tokenizer.size))
