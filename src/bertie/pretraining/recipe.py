"""The settings of a pre-training, as in the TOML files of configs/pretrain. Field docstrings are the help texts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from bertie.base import own_code, runtime
from bertie.base.config import AboveZero, Count, NotNegative, Positive, Range, check_ranges
from bertie.base.errors import UsageError
from bertie.batches.layouts import Layout
from bertie.checkpoints.model_card import CardFacts
from bertie.corpus.shards import Shards
from bertie.model.attention.attention import AttentionKind
from bertie.model.attention.segment_memory import require_segments
from bertie.model.config import TransformerConfig
from bertie.model.encoder import EncoderConfig
from bertie.objectives import AnyObjective
from bertie.objectives.objective import Objective, Recipe
from bertie.pretraining.growth import require_growth
from bertie.pretraining.phases import Phase, ResolvedPhase, resolve_phases
from bertie.tokenizers.tokenizer import Tokenizer
from bertie.training.clock import PARTS, Clock, parse_duration
from bertie.training.distributed import SINGLE_PROCESS, Ranks
from bertie.training.length import Length, StepCount
from bertie.training.optimizers import Optimizer
from bertie.training.schedules import InverseSquareRoot, Schedule
from bertie.training.trackers import Tracker


@dataclass(frozen=True)
class PretrainTraining:
    """Settings of the training loop: steps, batches, evaluations, checkpoints, hardware."""

    steps: Positive
    """Number of optimizer steps. Ignored if the recipe has a budget."""
    batch_size: Positive
    """Sequences of maximum length per step: a step has about batch_size × max_length tokens, however long the texts are."""
    learning_rate: NotNegative
    """Peak learning rate of the schedule."""
    embedding_lr_scale: AboveZero = 1.0
    """Factor of the learning rate for embeddings. Below 1, they stay closer to their initial values."""
    max_grad_norm: AboveZero = 1.0
    """Maximum gradient norm. Larger gradients are scaled down to it (gradient clipping)."""
    row_tokens: Positive = 4096
    """Approximate number of tokens per row of packed sequences. Ranks and forward passes share the rows of a step."""
    micro_batch: Count = 0
    """Rows per forward pass (gradient accumulation); 0: as many as fit into memory on a GPU, 1 on a CPU."""
    precision: runtime.Precision = "auto"
    """Floating-point precision; auto: bf16 if the hardware supports it and it is faster, otherwise fp32."""
    eval_every: Count = 500
    """Steps between evaluations on held-out documents; 0: only after the last step."""
    patience: Count = 0
    """Early stopping: end the run after this many evaluations without a lower held-out loss, and keep the weights with the
    lowest one; 0: off."""
    static_epochs: Count = 0
    """Number of epochs whose sequences and masks are repeated; 0: new ones in every epoch. BERT's release had 10
    copies of its text."""
    shuffle_tokens: Annotated[int, Range(0, 10**15)] = 0
    """Shuffle shards, and the text within groups of shards of at most this many tokens. The next group is read while
    the model trains on the current one. For text that does not fit on the disk of a machine; 0: shuffle the whole
    text."""
    max_eval_tokens: Positive = 131072
    """Maximum number of held-out tokens per evaluation."""
    checkpoint_every: Count = 500
    """Steps between checkpoints; 0: only after the last step."""
    checkpoint_minutes: NotNegative = 0.0
    """Also save a checkpoint this many minutes after the last one, whatever the step; 0: only by steps or, with a budget,
    after a twentieth of it, at least 1 and at most 10 minutes."""
    keep_checkpoints: Positive = 2
    """Number of newest checkpoints to keep, in addition to the one with the lowest held-out loss."""
    max_skipped_steps: Positive = 10
    """Consecutive skipped steps (non-finite loss or gradient) after which the run fails."""
    attention: AttentionKind = "automatic"
    """Attention implementation; automatic: the fastest one; varlen: requires a GPU, bf16 and no attention dropout."""
    compile: bool = True
    """Compile the layers on a GPU. Compilation takes a while when a run begins or resumes."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each layer and recompute the rest: far less memory, a third more computation."""
    trackers: tuple[Tracker, ...] = ()
    """Programs that also show the curves of the run: tensorboard (files in RUN/tensorboard), wandb, mlflow."""
    workers: Annotated[int, Range(0, 64)] = 0
    """Number of processes that prepare batches in advance; 0: none."""

    def __post_init__(self) -> None:
        check_ranges("training", self)
        if self.patience and not self.eval_every:
            raise UsageError("training.patience counts evaluations, but training.eval_every is 0: set it to 1 or more")


@dataclass(frozen=True)
class PretrainConfig:
    """Everything that decides a pre-training, except for the data, the run folder and the threads."""

    model: EncoderConfig
    """Size of the model. You may omit `vocab_size`: bertie takes it from the shards."""
    layout: Layout
    """How documents become sequences."""
    objectives: tuple[AnyObjective, ...]
    """Pre-training objectives, each of a different kind. Their weighted losses are added."""
    optimizer: Optimizer
    """The optimizer."""
    schedule: Schedule
    """The learning rate schedule."""
    training: PretrainTraining
    """Settings of the training loop: steps, batches, evaluations, checkpoints, hardware."""
    weights: tuple[float, ...] = field(default=(), kw_only=True)
    """How often a row is of each data set, if there are several: 2 1 takes two of the first for each one of the second. By
    default each text has the same number of epochs."""
    phases: tuple[Phase, ...] = ()
    """Parts of the run with their own sequence length and batch size; without phases, both stay constant."""
    budget: str = ""
    """Time for the whole run, such as "24h", "90m" or "30s". It replaces training.steps: the schedule and the phases follow
    the clock, and the run ends finished. Empty: training.steps count. Resuming is not exact to the bit, since the number of
    steps depends on the machine."""
    seed: Count = 0
    """Random seed of initial weights, layout, masks and dropout."""
    init_from: str = ""
    """Model to continue from: run folder, checkpoint folder or hub id. Its size replaces the size in `model`, except for
    dropout. Empty: random initial weights."""
    init_layers: Count = 0
    """Layers with init_from, at least as many as it has. More of them follow its last one, and begin as the identity. 0: as
    many as it has."""
    init_optimizer: Literal["reset", "keep"] = "reset"
    """Optimizer state with init_from. reset: initial state. keep: state of the same checkpoint."""
    card: CardFacts = CardFacts()
    """Additional model-card metadata."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        _ = self.budget_seconds
        if (self.init_optimizer == "keep" or self.init_layers) and not self.init_from:
            key = f"init_layers is {self.init_layers}" if self.init_layers else "init_optimizer is keep"
            raise UsageError(f"{key}, but init_from names no checkpoint: set init_from too")
        if self.budget and isinstance(self.schedule, InverseSquareRoot) and not self.schedule.warmup:
            raise UsageError("schedule.warmup is 0, and inverse_square_root with a budget needs one: set it to 0.01")
        if self.training.patience and len(self.phases) > 1:
            raise UsageError("training.patience does not work with phases: remove one of them")
        for where, weights in (
            ("", self.weights),
            *((f"phases.{i}.", phase.weights) for i, phase in enumerate(self.phases)),
        ):
            if weights and (min(weights) < 0 or not any(weights)):
                raise UsageError(f"{where}weights {weights}: give numbers of 0 or more, and one above 0")
            if weights and self.training.static_epochs:
                raise UsageError(f"{where}weights: training.static_epochs is for one data set: remove one of them")
        kinds = [objective.kind for objective in self.objectives]
        if not kinds or len(set(kinds)) < len(kinds):
            raise UsageError(f"objectives is {kinds}: give one or more, each of a different kind")
        shares = [objective.share for objective in self.objectives if objective.share < 1]
        if shares and abs(sum(shares) - 1) > 1e-6:
            raise UsageError(f"the shares of the objectives sum to {sum(shares):g}: they must sum to 1")
        if not any(objective.weight for objective in self.objectives):
            raise UsageError(f"objectives.{kinds[0]}.weight is 0, and no objective has a higher one: raise one of them")
        for objective in self.objectives:
            own_code.require(type(objective), Objective)
            objective.check(Recipe(self.model, self.layout, self.objectives))
        if 0 < len(shares) < len(self.objectives):
            raise UsageError("objectives: some have a share, and others read all sequences: give each a share, or none")
        if not self.init_from:
            require_growth(self.phases, self.model)
        _check_layout(self.layout, self.model, self.objectives)
        if not self.init_from:  # otherwise the checkpoint decides how long a sequence may be
            require_positions(self)
        self._check_attention()

    def _check_attention(self) -> None:
        """Raise UsageError if the attention implementation does not support the model or the precision."""
        settings, model = self.training, self.model
        if not isinstance(model, TransformerConfig):
            for key in ("attention", "activation_checkpointing"):
                if getattr(settings, key) not in ("automatic", False):
                    raise UsageError(f'training.{key} is for Transformers, and model.kind is "{model.kind}": remove it')
        elif settings.attention == "varlen":
            for key, supported in (
                ("model.position_embedding alibi", model.position_embedding != "alibi"),
                ("model.attention_probs_dropout_prob", not model.attention_probs_dropout_prob),
                ("training.precision fp32", settings.precision != "fp32"),
            ):
                if not supported:
                    raise UsageError(
                        f"training.attention varlen does not support {key}: change it, or set training.attention to automatic"
                    )

    @property
    def budget_seconds(self) -> float:
        """The budget in seconds; 0: there is none. Raises UsageError if it is no duration."""
        return parse_duration(self.budget, "budget") if self.budget else 0.0

    def length(self, ranks: Ranks = SINGLE_PROCESS, begun: float = 0.0) -> Length:
        """Return how long the run trains. A budget counts from `begun`, in seconds of `time.monotonic`."""
        return Clock(self.budget_seconds, ranks, begun) if self.budget else StepCount(self.training.steps)

    @property
    def minutes_between_checkpoints(self) -> float:
        """Minutes after which a run with a budget saves: a twentieth of it, at least 1 and at most 10; 0 without one."""
        return min(max(self.budget_seconds / 60 / 20, 1.0), 10.0) if self.budget else 0.0

    @property
    def resolved_phases(self) -> list[ResolvedPhase]:
        """The phases with defaults filled in; one phase if there are none. Raises UsageError if they are invalid.

        With a budget, they end after parts of the run (see `clock.PARTS`) instead of steps.
        """
        settings = self.training
        sizes = (settings.batch_size, settings.row_tokens, PARTS if self.budget else settings.steps)
        repeated = settings.static_epochs, settings.shuffle_tokens
        phases = tuple(replace(phase, layers=0) for phase in self.phases) if self.init_from else self.phases
        return resolve_phases(phases, self.layout, *sizes, *repeated, self.weights)


def require_positions(config: PretrainConfig) -> None:
    """Raise UsageError if a sequence may be longer than the model reads, if the phases are invalid, or if the sequences do not
    suit the segments of the model."""
    longest = max(phase.layout.max_length for phase in config.resolved_phases)
    most = config.model.max_position_embeddings
    if longest > most:
        where = "layout.max_length" if longest == config.layout.max_length else "phases: max_length"
        raise UsageError(f"{where} {longest} is more than model.max_position_embeddings {most}: change one of them")
    require_segments(config.model, config.layout, longest)


def _check_layout(layout: Layout, model: EncoderConfig, objectives: tuple[AnyObjective, ...]) -> None:
    """Raise UsageError if the layout does not give what the model or the objectives need, or gives what they cannot use."""
    if model.language_embeddings and layout.kind != "translations":
        raise UsageError(
            f'model.language_embeddings true needs layout.kind "translations", not "{layout.kind}": change one of them'
        )
    if layout.kind == "pairs" and model.type_vocab_size == 1:
        raise UsageError('model.type_vocab_size is 1, but layout.kind is "pairs": set it to 2, or to 0 for no segments')
    if layout.kind == "pairs" and layout.negatives == "swapped" and not any(o.traits.reads_pairs for o in objectives):
        raise UsageError(
            'layout.negatives "swapped" needs the objective nsp: add it, or set layout.negatives to "random"'
        )


def with_vocab_size(config: PretrainConfig, tokenizer: Tokenizer) -> PretrainConfig:
    """Return the recipe with the vocabulary size of a tokenizer.

    Raises:
        UsageError: If the recipe has another vocabulary size, or if its settings contradict each other.
    """
    model = config.model
    if model.vocab_size not in (0, tokenizer.size):
        raise UsageError(
            f"model.vocab_size is {model.vocab_size}, but the shards have {tokenizer.size} entries: omit it"
        )
    require_positions(config)
    return replace(config, model=replace(model, vocab_size=tokenizer.size))


def with_languages(config: PretrainConfig, shards: Shards) -> tuple[PretrainConfig, Shards]:
    """Make a model with language embeddings and the shards number the languages alike.

    A model that does not name its languages gets the languages of the shards.

    Raises:
        UsageError: If the model has no embedding for a language of the shards, or if no document has a translation.
    """
    layout, model = config.layout, config.model
    counts = shards.manifest["splits"]["train"]
    if layout.kind == "translations" and layout.translation_prob > 0 and counts.get("translated") == 0:
        raise UsageError(f"no training document of {shards.place} has a translation: set layout.translation_prob to 0")
    if not model.language_embeddings:
        return config, shards
    if others := sorted({*shards.languages} - {*model.languages}) if model.languages else []:
        raise UsageError(f"model.languages lacks {', '.join(others)}, which {shards.place} has: add them")
    model = replace(model, languages=model.languages or shards.languages)
    return replace(config, model=model), shards.with_languages(model.languages)


def require_attention(settings: PretrainTraining) -> None:
    """Raise UsageError if the attention implementation does not support this machine."""
    target = runtime.device().type
    precision = runtime.resolve_precision(settings.precision, runtime.device())
    machines = {"varlen": ("cuda", "bf16"), "grouped": ("cpu", precision), "looped": ("cpu", precision)}
    needed = machines.get(settings.attention, (target, precision))
    if needed != (target, precision):
        here, there = f"{precision} on {target}", " and ".join(needed)
        raise UsageError(
            f"training.attention {settings.attention} needs {there}, but this is {here}: set it to automatic"
        )
