"""What fine-tuning and prediction ask of a task. Each task is a frozen dataclass in a file of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from torch import nn

from bertie.contracts import Batch, Sequence
from bertie.errors import UserError
from bertie.model.config import BertConfig
from bertie.tasks.evaluation.findings import Evaluation
from bertie.text.tokenizer import Tokenizer

Unit = Literal["sequence", "example", "batch"]


class Reader(Protocol):
    """Of one form of examples. A row that cannot be read is a UserError in its place; what is wrong with all is raised."""

    def read(self, path: Path) -> Iterator[Any | UserError]:
        """With what is to be learned."""
        ...

    def stream(self, path: Path) -> Iterator[Any | UserError]:
        """For prediction, lazily: without what is to be learned too."""
        ...

    def values(self, given: Iterable[Any]) -> Iterator[Any]:
        """From Python values. Errors: UsageError, UserError for the first bad one."""
        ...


class Task(Protocol):
    """What `fit` finds out is `Fixed`: no flag.

    examples are of the reader's kind; sequences those that `encode` made of them; outputs one array a sequence.
    """

    @property
    def kind(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]:
        """The classes; empty where there are none."""
        ...

    @property
    def unit(self) -> Unit:
        """What is shuffled, and stays in one forward pass: a sequence; all of an example; all of a step ("batch")."""
        ...

    @property
    def metric(self) -> str:
        """The score that counts, where nobody names another."""
        ...

    @property
    def reader(self) -> Reader: ...

    def fit(self, examples: list[Any]) -> Task:
        """The task as the training examples define it. Errors: UserError, UsageError."""
        ...

    def validate(self, examples: list[Any]) -> None:
        """Errors: UserError naming the first example that cannot be scored."""
        ...

    def encode(self, examples: list[Any], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """In the order of the examples, `example` their numbers, all with targets where they are known. Errors: UserError."""
        ...

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        """Those to train on."""
        ...

    def head_positions(self, sequence: Sequence) -> np.ndarray:
        """Which tokens of it the head looks at: positions, int64, sorted."""
        ...

    def head(self, config: BertConfig, width: int) -> nn.Module:
        """width: of the rows that it reads (`Hidden.last`)."""
        ...

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Any:
        """index: int64 [P], where in the batch the tokens lie that `reads` named, sequence after sequence."""
        ...

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Any]) -> list[Any]:
        """A prediction an example. outputs: float32 [tokens that it reads, C] of each sequence."""
        ...

    def read_prediction(self, values: dict[str, Any], example: Any, place: str) -> Any:
        """What `as_json` gave of a prediction, as far as `score` needs it. Errors: UserError where it is none for the example."""
        ...

    def score(self, predictions: list[Any], examples: list[Any]) -> dict[str, float]:
        """Errors: as `check`."""
        ...

    def constant_predictions(self, examples: list[Any]) -> list[list[Any]]:
        """Predictions that are the same for all examples, the best of which is as good as those can be: a model that is not
        better has learned nothing."""
        ...

    def evaluate(self, predictions: list[Any], examples: list[Any]) -> Evaluation:
        """What there is to tell beside the scores. Errors: as `check`."""
        ...


@runtime_checkable
class Calibratable(Protocol):
    """A task that finds something out on the dev examples."""

    def calibrate(self, predictions: list[Any], examples: list[Any]) -> Task: ...
