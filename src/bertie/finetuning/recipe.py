"""The configuration of fine-tuning: the keys of the TOML files in configs/finetune."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from bertie.base import config, own_code, runtime
from bertie.base.config import (
    AboveZero,
    Count,
    DropoutRate,
    DropoutRateOrNone,
    LayerCount,
    NotNegative,
    Positive,
    PositiveFraction,
    Range,
    check_ranges,
    ranges,
)
from bertie.base.errors import MAX_INT32, UsageError
from bertie.checkpoints.model_card import CardFacts
from bertie.model.heads.layer_selection import LayerSelection
from bertie.model.heads.text_pooling import pooling_facts, require_bilstm
from bertie.tasks import AnyTask, Task
from bertie.tasks.task_json import NOT_TASK_FIELDS
from bertie.training.optimizers import Optimizer
from bertie.training.schedules import Schedule
from bertie.training.trackers import Tracker

InputTokens = Literal["model", "gpt"]


@dataclass(frozen=True)
class FinetuneTraining:
    """Settings of the training loop."""

    epochs: Count = 0
    """Passes over the training examples; 0: those of the task, mostly 3, or more for few examples: as many as give 300 steps, at
    most 20."""
    steps: Count = 0
    """Number of optimizer steps; 0: as many as the epochs take."""
    batch_size: Positive = 32
    """Examples per optimizer step."""
    shuffle: bool = True
    """Shuffle the training examples in every epoch. Unshuffled examples keep the order of their file, such as easy ones
    first (curriculum learning)."""
    learning_rate: NotNegative = 0.0
    """Peak learning rate of the schedule; 0: by the hidden size. From 768 on the task's, mostly 5e-5; from 384 on twice as
    much; below 6 times, with post-norm twice. 1e-2 for a frozen encoder."""
    layer_decay: PositiveFraction = 1.0
    """Layer-wise learning rate decay: factor from each layer to the layer below it, such as 0.95; 1: no decay."""
    reinit_layers: Count = 0
    """Number of top layers to initialize randomly, together with the pooler (Zhang et al. 2021)."""
    max_grad_norm: AboveZero = 1.0
    """Maximum gradient norm. Larger gradients are scaled down to it (gradient clipping)."""
    row_tokens: Positive = 8192
    """Maximum number of tokens per forward pass, as if all sequences had max_length. Larger batches are split into
    micro-batches (gradient accumulation)."""
    precision: runtime.Precision = "auto"
    """Floating-point precision; auto: bf16 if the hardware supports it and it is faster, otherwise fp32."""
    eval_every: Count = 0
    """Steps between evaluations of the dev loss; 0: only at the end, or with patience after every epoch."""
    patience: Count = 0
    """Early stopping: end the run after this many epochs (with eval_every: evaluations) without a lower dev loss, and keep
    the weights with the lowest dev loss; 0: off."""
    checkpoint_every: Count = 500
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: Positive = 1
    """Number of newest checkpoints to keep; older ones are deleted."""
    trackers: tuple[Tracker, ...] = ()
    """Programs that also show the curves of the run: tensorboard (files in RUN/tensorboard), wandb, mlflow."""

    __post_init__ = ranges("training")


@dataclass(frozen=True)
class GridSearch:
    """Grid search over all combinations of these values. An empty list stands for the value in `training`.

    Common choices in the literature: learning rates 3e-6, 1e-5, 2e-5, 3e-5 and 5e-5, batch sizes 2 to 32, 1 to 4
    epochs.
    """

    learning_rate: tuple[float, ...] = ()
    """Peak learning rates to try."""
    batch_size: tuple[int, ...] = ()
    """Batch sizes to try."""
    epochs: tuple[int, ...] = ()
    """Numbers of epochs to try."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise UsageError(f"grid.{name} has a value twice: {', '.join(f'{value:g}' for value in values)}")
            low = 0 if name == "learning_rate" else 1
            if wrong := [value for value in values if not low <= value < MAX_INT32]:
                raise UsageError(f"grid.{name} has {wrong[0]:g}: values must be from {low} to less than {MAX_INT32:g}")


@dataclass(frozen=True)
class FinetuneConfig:
    """The complete configuration of a fine-tuning.

    With a grid or restarts it describes several runs: the best one is selected on one half of the dev examples, and its
    scores are reported on the other half.
    """

    task: AnyTask
    """The task, with its columns and options."""
    optimizer: Optimizer
    """The optimizer."""
    schedule: Schedule
    """The learning rate schedule."""
    training: FinetuneTraining
    """Settings of the training loop."""
    grid: GridSearch = GridSearch()
    """Hyperparameters to search."""
    restarts: LayerCount = 1
    """Number of runs per setting. Each run has its own random seed (seed, seed + 1, …), so different initial head
    weights and a different order of the examples."""
    metric: str = ""
    """The dev score that selects the best run; empty: the task's default metric."""
    seed: Count = 0
    """Random seed of the initial head weights, the order of the examples, and dropout."""
    max_length: int = 128
    """Maximum sequence length in tokens. Longer texts are truncated or read in windows, as task.truncation says; span
    always reads them in windows."""
    input_tokens: InputTokens = "model"
    """Special tokens around the texts. model: as the tokenizer has them. gpt: <start>, <delimiter> and <extract>, new
    entries of the vocabulary with random vectors, for causal models; heads are one matrix on the state of <extract> (Radford et
    al. 2018)."""
    lm_weight: NotNegative = 0.0
    """Weight of an additional loss, for a causal model: the mean of the next token's cross-entropy over the tokens of the inputs.
    GPT had 0.5."""
    language: str = ""
    """Language of the texts, for a model with language embeddings; empty: the model's own, by default its first."""
    dev_share: Annotated[float, Range(0, 0.5, above=True)] = 0.1
    """Share of the training examples to hold out as the dev set, if no dev examples are given: about the same share of each
    class, and equal texts on one side."""
    test_share: Annotated[float, Range(0, 0.5)] = 0.0
    """Share of the training examples to hold out as the test set, which is scored once, after training."""
    group: str = ""
    """Column of the training examples whose equal values are held out together, such as the author or the document."""
    weights: tuple[float, ...] = ()
    """How often each data set of several has a turn, if the loss compares the texts of a batch: then each batch is of one data
    set. By default every example once an epoch; 2 1: two batches of the first for each one of the second, in an epoch as long."""
    max_train_examples: Count = 0
    """Use a random subset of this many training examples, the same for every seed; 0: all."""
    strict: bool = False
    """Refuse files with rows that cannot be read, instead of skipping and counting those rows."""
    frozen: bool = False
    """Feature-based fine-tuning: train only the head, on hidden states of the frozen encoder that are computed once."""
    layers: LayerSelection = "last"
    """The layers that the head reads; scalar_mix: a learned weighted mean of the embeddings and all layers."""
    lstm_hidden_size: Annotated[int, Range(0, 1 << 16)] = 0
    """Hidden size, per direction, of a two-layer BiLSTM between encoder and head; 0: no BiLSTM."""
    from_scratch: bool = False
    """Use only the size and vocabulary of the checkpoint, with random initial weights: the baseline without
    pre-training."""
    hidden_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the hidden layers. It replaces the checkpoint's value."""
    attention_probs_dropout_prob: DropoutRate = 0.1
    """Dropout probability of the attention weights. It replaces the checkpoint's value."""
    head_dropout_prob: DropoutRateOrNone = None
    """Dropout probability before the output layer of the head. If it is omitted, heads for texts and tokens have the one that
    the checkpoint names (`classifier_dropout` in config.json), or else hidden_dropout_prob; others have none."""
    card: CardFacts = CardFacts()
    """Additional model-card metadata."""

    def __post_init__(self) -> None:
        check_ranges("", self)
        own_code.require(type(self.task), Task)
        if taken := {*vars(self.task)} & {*NOT_TASK_FIELDS}:
            raise UsageError(f"task.{min(taken)}: task.json uses this name for something else: rename the field")
        if self.seed > (most := MAX_INT32 - self.restarts):
            raise UsageError(f"seed is {self.seed}: with {self.restarts} restarts it can be at most {most:,}")
        training = self.training
        if self.frozen and (self.from_scratch or training.reinit_layers or training.layer_decay < 1):
            raise UsageError("frozen does not work with from_scratch, reinit_layers or layer_decay: change one of them")
        if self.task.facts.shape == "vectors" and (self.layers != "last" or self.lstm_hidden_size or self.frozen):
            raise UsageError(f"{self.task.kind} only pools the last layer: remove layers, lstm_hidden_size and frozen")
        require_bilstm(self.task.text_pooling, self.lstm_hidden_size)
        windows = getattr(self.task, "truncation", "") == "windows"
        if windows and pooling_facts(self.task.text_pooling).separate == "orders":
            raise UsageError(
                f"task.pooling {self.task.text_pooling} does not work with task.truncation windows: change one of them"
            )
        self._check_gpt()
        if self.grid.epochs and training.steps:
            raise UsageError("training.steps and grid.epochs both set the length of a run: remove one of them")

    def _check_gpt(self) -> None:
        """Check `input_tokens` and `lm_weight`. Raises UsageError."""
        pooling = self.task.text_pooling
        if self.input_tokens == "gpt" and (pooling is None or not pooling_facts(pooling).one_token):
            raise UsageError("input_tokens gpt needs task.pooling token or both_orders: set it to model")
        if self.lm_weight and (self.frozen or self.layers != "last" or self.lstm_hidden_size):
            raise UsageError("lm_weight does not work with frozen, layers or lstm_hidden_size: change one of them")


def read_recipe(source: Any) -> FinetuneConfig:
    """Return the configuration that a user means by a kind of task, a TOML file, a dict, a task, its class or a FinetuneConfig.

    A task stands for the recipe of its kind with this task; one of the user's own, or its name, for that of `Task.recipe`.

    Raises:
        UsageError: There is no such recipe or task, or it is wrong.
    """
    if isinstance(source, FinetuneConfig):
        return source
    if own_code.is_name(source):
        source = config.build(AnyTask, {"kind": source}, "task")
    if isinstance(source, type):
        source = source()
    if not isinstance(source, str | Path | dict):
        source = {"extends": source.recipe if own_code.name_of(type(source)) else source.kind, "task": source}
    return config.load(FinetuneConfig, source, "finetune")
