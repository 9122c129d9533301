"""The contract of a pre-training objective. Read this page before you add one.

An objective is a frozen dataclass in its own file. Its fields are its settings: they become flags and TOML keys. Every
objective fulfills `Objective`. The other protocols are optional: an objective has their methods if it needs them.

Pre-training calls them in this order:

1. `check` refuses a recipe that does not suit the objective.
2. `label` corrupts a packed row and says what to predict, for every row of every step (NumPy, in the data loader). The
   objectives label in the order of the recipe, each the row that the one before returned.
3. `head` builds the module that predicts. `generator` (of `Generates`) and `read_teacher` (of `Teaches`) bring a second
   encoder.
4. `counted` and `initialize` (of `Initializes`) set weights that should not start at random, and `hold` (of `Holds`) keeps
   weights as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from bertie.base.contracts import Batch
from bertie.batches.layouts import Layout
from bertie.checkpoints.checkpoint import Checkpoint
from bertie.corpus.shards import Shards
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.model import Model
from bertie.objectives.initialization import Pending
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Labeling:
    """What an objective may use to label a row."""

    tokenizer: Tokenizer
    """For the ids of special tokens."""
    rng: np.random.Generator
    """The only source of random numbers."""
    progress: float = 0.0
    """Fraction of the run that is complete, in [0, 1). 0 for the evaluation set."""
    held_out: bool = False
    """Whether the row belongs to the evaluation set."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the objectives before this one noted on the row, by kind."""


class Labeled(NamedTuple):
    """A row that an objective has labeled."""

    batch: Batch
    """The row, with what the objective has changed."""
    targets: Any
    """`contracts.Targets`, or a dataclass of its own with `index`, `label` and `weight`."""
    notes: Any = None
    """For the objectives after this one."""


@dataclass(frozen=True)
class Traits:
    """What an objective does, as far as other parts of a recipe depend on it."""

    predicts_text: bool = False
    """Whether its loss is that of tokens of the text, in nats per token, so that word frequencies are a baseline."""
    reads_pairs: bool = False
    """Whether it learns the labels of sentence pairs, which the layout makes."""
    masks: bool = False
    """Whether it replaces tokens of the row, so that another one cannot predict the text itself."""


class Objective(Protocol):
    """What pre-training needs from an objective."""

    facts: ClassVar[HeadFacts]
    """What other rooms say of its head."""
    traits: ClassVar[Traits]
    """What the rest of a recipe depends on."""

    @property
    def kind(self) -> str:
        """The key of its head and its losses, and its `kind` in TOML."""
        ...

    @property
    def weight(self) -> float:
        """Weight of its loss in the total loss."""
        ...

    def check(self, model: EncoderConfig, layout: Layout, objectives: tuple[Objective, ...]) -> None:
        """Refuse a recipe that does not suit this objective.

        Args:
            model: Configuration of the encoder.
            layout: The layout of the sequences.
            objectives: All objectives of the recipe, in order, with this one.

        Raises:
            UsageError: Says what does not fit, and what to do.
        """
        ...

    def label(self, batch: Batch, given: Labeling) -> Labeled:
        """Corrupt a row and return it with the targets. The row is not changed in place.

        The number of targets depends only on the size of the row. Those that are not needed weigh 0.

        Args:
            batch: A row of T packed tokens, as NumPy arrays.
            given: The tokenizer, the random numbers, and what the objectives before this one noted.
        """
        ...

    def head(self, config: EncoderConfig, encoder: Encoder) -> nn.Module:
        """Build the head, untrained.

        Args:
            config: Configuration of the encoder that the head reads.
            encoder: This encoder, whose word embeddings the head may share.

        Returns:
            A module whose `forward(hidden, targets)` returns a `Loss`. For a head that runs another encoder on the same
            batch, such as a teacher, `hidden` has the batch and the rows.
        """
        ...


@runtime_checkable
class Initializes(Protocol):
    """An objective that sets initial weights."""

    @property
    def initialization(self) -> str:
        """How it sets them. "random" leaves them as they are, and every such objective accepts it."""
        ...

    def counted(self, model: Model) -> nn.Embedding | None:
        """Return the word embeddings that begin with co-occurrence vectors; None: none do.

        The vectors take seconds, so pre-training computes them beside other work (`initialization.begin_vectors`).
        """
        ...

    def initialize(self, model: Model, shards: Shards, begun: Pending | None = None) -> None:
        """Set initial weights in place.

        Args:
            model: The model.
            shards: Their training text may be counted.
            begun: Waits for the vectors of `counted`; None: they are computed now.
        """
        ...


@runtime_checkable
class Holds(Protocol):
    """An objective that does not train all weights."""

    def hold(self, model: Model, tokenizer: Tokenizer, optimizer: torch.optim.Optimizer) -> None:
        """Keep weights as they are. For every call that trains a run."""
        ...


@runtime_checkable
class Generates(Protocol):
    """An objective whose encoder reads samples of a generator, which is trained with it."""

    def generator(self, config: EncoderConfig) -> TransformerConfig:
        """Return the configuration of the generator. config: that of the encoder."""
        ...


@runtime_checkable
class Teaches(Protocol):
    """An objective that brings a teacher: a model that is neither trained nor saved."""

    @property
    def teacher(self) -> str:
        """The model that teaches: run folder, checkpoint folder or hub id."""
        ...

    def read_teacher(
        self, student: EncoderConfig, longest: int, continues: bool, tokenizer: Tokenizer | None, flag: str
    ) -> Checkpoint:
        """Read the teacher.

        Args:
            student: Configuration of the model.
            longest: Tokens of the longest sequence of the run.
            continues: Whether the student begins with weights of another model.
            tokenizer: The tokenizer of the training text; None: it is not known yet, and is not compared.
            flag: Prefix of this objective's flags, for messages: "--objectives.1".

        Raises:
            UsageError: There is no such model, or it does not fit the student, the text or the settings.
            UserError: The model is damaged.
        """
        ...

    def connect_teacher(self, model: Model, teacher: Checkpoint, attention: AttentionKind) -> None:
        """Build the teacher, and connect it with the head of this objective.

        Args:
            model: The student.
            teacher: The checkpoint that `read_teacher` returned.
            attention: The attention implementation of the teacher.
        """
        ...
