"""All that decides a fine-tuning: what a TOML file of configs/finetune says."""

from __future__ import annotations

from dataclasses import dataclass

from bertie import runtime
from bertie.errors import MAX_INT32, UsageError, require_range
from bertie.model.layer_selection import Layers
from bertie.tasks import AnyTask
from bertie.training.optimizers import Optimizer
from bertie.training.schedules import Schedule


@dataclass(frozen=True)
class FinetuneTraining:
    epochs: int = 3
    """Passes over the training examples."""
    steps: int = 0
    """Optimizer steps in all; 0: as many as the epochs take."""
    batch_size: int = 32
    """Examples a step."""
    learning_rate: float = 5e-5
    """The highest the schedule reaches."""
    layer_decay: float = 1.0
    """What the learning rate of a layer is multiplied with for the layer below it (0.95, say); 1: all learn alike."""
    reinit_layers: int = 0
    """Layers, from the top, that start with new weights, and with them the pooler: what they know may serve pre-training's
    objectives alone (Zhang et al. 2021)."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    row_tokens: int = 8192
    """Most tokens of one forward pass; larger batches are split."""
    precision: runtime.Precision = "auto"
    """auto: bf16 where it is in hardware and faster."""
    eval_every: int = 0
    """Steps between evaluations of the dev loss; 0: only at the end."""
    patience: int = 0
    """Evaluations without a lower dev loss after which training ends, with the weights of the lowest; 0: it goes on."""
    checkpoint_every: int = 500
    """Steps between checkpoints; 0: only at the end."""
    keep_checkpoints: int = 1
    """The newest that stay; older ones are deleted."""

    def __post_init__(self) -> None:
        require_range("training", self, "epochs", "batch_size", "row_tokens", "keep_checkpoints", low=1)
        require_range("training", self, "steps", "learning_rate", "eval_every", "checkpoint_every", low=0)
        require_range("training", self, "patience", "reinit_layers", low=0)
        require_range("training", self, "max_grad_norm", low=0, above=True)
        require_range("training", self, "layer_decay", low=0, high=1, above=True)
        if self.patience and not self.eval_every:
            raise UsageError(
                "training.patience counts evaluations: say with training.eval_every how often there is one"
            )


@dataclass(frozen=True)
class Grid:
    """Values to try, in all combinations; what has none stays as `training` has it.

    The literature advises batches of 2 to 32, rates 3e-6, 1e-5, 2e-5, 3e-5 and 5e-5, 1 to 4 epochs.
    """

    learning_rate: tuple[float, ...] = ()
    batch_size: tuple[int, ...] = ()
    epochs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("learning_rate", "batch_size", "epochs"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise UsageError(f"grid.{name} names a value twice: {', '.join(f'{value:g}' for value in values)}")
            for value in values:
                if not 0 <= value < MAX_INT32 or (name != "learning_rate" and value < 1):
                    least = "0" if name == "learning_rate" else "1"
                    raise UsageError(f"grid.{name} has {value:g}: give numbers from {least} to less than {MAX_INT32:g}")


@dataclass(frozen=True)
class FinetuneConfig:
    task: AnyTask
    optimizer: Optimizer
    schedule: Schedule
    training: FinetuneTraining
    grid: Grid = Grid()
    restarts: int = 1
    """Runs of each setting, with seeds from `seed` on: other weights of the added layer, another order of the examples."""
    metric: str = ""
    """The dev score that chooses among runs; empty: the task's usual one."""
    seed: int = 0
    """Of the added layer's weights, the order of the examples, and dropout."""
    max_length: int = 128
    """Tokens in the longest sequence; longer examples are cut, or read in windows (task.truncation; span always)."""
    max_train_examples: int = 0
    """Use a random part of this many training examples (the same for every seed); 0: all."""
    strict: bool = False
    """Refuse files with rows that cannot be read, rather than skip and count those."""
    frozen: bool = False
    """Train the head alone, on vectors of the encoder that are computed once; it stays as it is."""
    layers: Layers = "last"
    """What the head reads of the layers; mix: all of them and the embeddings, in shares that are learned."""
    lstm_hidden_size: int = 0
    """Numbers of each direction of a two-layer BiLSTM between encoder and head; 0: none."""
    from_scratch: bool = False
    """Take the checkpoint's size and vocabulary but new weights: the baseline that pre-training has to beat."""
    hidden_dropout_prob: float = 0.1
    """Dropout of the hidden layers and before the added layer, whatever pre-training used."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout of the attention weights, whatever pre-training used."""

    def __post_init__(self) -> None:
        require_range("", self, "seed", "max_train_examples", low=0)
        require_range("", self, "restarts", low=1, high=1000)
        if self.seed > MAX_INT32 - self.restarts:
            raise UsageError(
                f"seed is {self.seed}: with {self.restarts} restarts give at most {MAX_INT32 - self.restarts:,}"
            )
        require_range("", self, "lstm_hidden_size", low=0, high=1 << 16)
        training = self.training
        if self.frozen and (self.from_scratch or training.reinit_layers or training.layer_decay < 1):
            raise UsageError(
                "frozen leaves the checkpoint's encoder as it is: take out from_scratch, training.reinit_layers and "
                "training.layer_decay"
            )
        if self.task.kind == "embed" and (self.layers != "last" or self.lstm_hidden_size):
            raise UsageError("embed makes its vectors of the last layer alone: leave out layers and lstm_hidden_size")
        if self.frozen and self.task.kind == "embed":
            raise UsageError("frozen leaves nothing to train: embed adds no weights of its own to the encoder")
        if self.grid.epochs and self.training.steps:
            raise UsageError("training.steps says how long a run is, and so does grid.epochs: give one of them")
        require_range("", self, "hidden_dropout_prob", "attention_probs_dropout_prob", low=0, high=0.99)
