"""The contract of a pre-training objective. Read this page before you add one.

An objective is a frozen dataclass in its own file, derived from `Objective`. Its fields are its settings: they become flags
and TOML keys. It needs `check`, `label` and `head`; the other methods have defaults that do nothing.

Pre-training calls them in this order:

1. `check` refuses a recipe that does not suit the objective.
2. `label` corrupts a packed row and says what to predict, for every row of every step (NumPy, in the data loader). The
   objectives label in the order of the recipe, each the row that the one before returned.
3. `head` builds the module that predicts. `generator`, or `read_teacher` and `connect_teacher`, bring a second encoder.
4. `counted` and `initialize` set weights that should not start at random, and `hold` keeps weights as they are.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from bertie.base.config import Doc, Range, check_ranges
from bertie.base.contracts import Batch
from bertie.batches.layouts import Layout
from bertie.checkpoints.read import Checkpoint
from bertie.model.attention.attention import AttentionKind
from bertie.model.config import TransformerConfig
from bertie.model.encoder import Encoder, EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.model import Model
from bertie.objectives.initialization import counted_embeddings, initialize_embeddings
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Labeling:
    """The tools of an objective that labels a row."""

    tokenizer: Tokenizer
    """For the ids of special tokens."""
    rng: np.random.Generator
    """The only source of random numbers."""
    progress: float = 0.0
    """Fraction of the run that is complete, in [0, 1). 0 for the evaluation set."""
    held_out: bool = False
    """Whether the row belongs to the evaluation set."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Notes of the objectives before this one on the row, by kind."""


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
    """The properties of an objective that other parts of a recipe depend on."""

    predicts_text: bool = False
    """Whether its loss is in nats per token of the text, so that word frequencies are a baseline."""
    reads_pairs: bool = False
    """Whether it learns the labels of sentence pairs, which the layout makes."""
    masks: bool = False
    """Whether it replaces tokens of the row, so that another one cannot predict the text itself."""
    reads_left: bool = False
    """Whether the tokens of the sequences that it labels must see earlier ones only."""


Weight = Annotated[float, Range(0), Doc("Weight of this loss in the total loss.")]
SequenceShare = Annotated[
    float,
    Range(0, 1, above=True),
    Doc(
        "Share of the sequences that this objective labels, at random. Shares below 1 add up to 1: each sequence has one of them."
    ),
]


class Recipe(NamedTuple):
    """The parts of a recipe that an objective may depend on."""

    model: EncoderConfig
    layout: Layout
    objectives: tuple[Objective, ...]
    """All of them, in order."""


class Objective(Protocol):
    """The facts that pre-training needs from an objective, with defaults for one that needs nothing special."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    facts: ClassVar[HeadFacts]
    """Facts about its head, for other rooms."""
    traits: ClassVar = Traits()
    """Its properties that the rest of a recipe depends on."""
    counted = counted_embeddings
    initialize = initialize_embeddings
    kind: Any
    """The key of its head and its losses, and its `kind` in TOML."""
    weight: Weight
    """Weight of its loss in the total loss."""
    share: SequenceShare = 1.0
    """Share of the sequences that it labels."""

    def __post_init__(self) -> None:
        check_ranges(f"objectives.{self.kind}", self)

    @abstractmethod
    def check(self, recipe: Recipe) -> None:
        """Refuse a recipe that does not suit this objective.

        Raises:
            UsageError: Says what does not fit, and what to do.
        """
        ...

    @abstractmethod
    def label(self, batch: Batch, labeling: Labeling) -> Labeled:
        """Corrupt a row and return it with the targets. The row is not changed in place.

        The number of targets depends only on the size of the row. Those that are not needed weigh 0.

        Args:
            batch: A row of T packed tokens, as NumPy arrays.
            labeling: The tokenizer, the random numbers, and the notes of the objectives before this one.
        """
        ...

    @abstractmethod
    def head(self, encoder: Encoder) -> nn.Module:
        """Build the head, untrained.

        Args:
            encoder: The encoder that the head reads. The head may share its word embeddings.

        Returns:
            A module whose `forward(hidden, targets)` returns a `Loss`. For a head that runs another encoder on the same
            batch, such as a teacher, `hidden` has the batch and the rows.
        """
        ...

    def hold(self, model: Model, tokenizer: Tokenizer, optimizer: torch.optim.Optimizer) -> None:
        """Keep weights as they are that this objective does not train. For every call that trains a run."""

    def generator(self, config: EncoderConfig) -> TransformerConfig | None:
        """Return the configuration of a generator, whose samples the encoder reads. config: the encoder's configuration."""

    def read_teacher(
        self, student: EncoderConfig, longest: int, continues: bool, tokenizer: Tokenizer | None, flag: str
    ) -> Checkpoint | None:
        """Read the teacher, a model that is neither trained nor saved; None: the objective has none.

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

    def connect_teacher(self, model: Model, teacher: Checkpoint, attention: AttentionKind) -> None:
        """Build the teacher, and connect it with the head of this objective.

        Args:
            model: The student.
            teacher: The checkpoint that `read_teacher` returned.
            attention: The attention implementation of the teacher.
        """
