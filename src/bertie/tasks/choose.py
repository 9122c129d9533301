"""The best of several endings: each is read with the start, a vector times [CLS] scores it, softmax over the endings.

Devlin et al. 2018, section 4.4 (SWAG). The [CLS] is the pooled one, as in the models that others have released.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UserError
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.model.losses import choice
from bertie.tasks.assessment.choose import assess_choices
from bertie.tasks.assessment.findings import Assessment
from bertie.tasks.contract import Unit
from bertie.tasks.data.choices import Choice, ChoiceColumns, Choices
from bertie.tasks.data.predictions import answer_of
from bertie.tasks.data.rows import whole_number_of
from bertie.tasks.encoding import FIRST, by_example, softmax
from bertie.text import framing
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chosen:
    """choice: the number of the most probable ending, from 0."""

    choice: int
    probabilities: list[float]


@dataclass(frozen=True)
class Choose:
    kind: Literal["choose"] = "choose"
    context: str = ""
    """Column of the start (empty: found from the header)."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or the one that holds a list (empty: ending0, ending1 …, endings or choices)."""
    label: str = ""
    """Column of the right ending's number, from 0, or of the name of its column (empty: found from the header)."""

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def unit(self) -> Unit:
        return "example"

    @property
    def metric(self) -> str:
        return "accuracy"

    @property
    def reader(self) -> Choices:
        return Choices(ChoiceColumns(self.context, self.label, self.endings))

    def fit(self, examples: list[Choice]) -> Choose:
        self.check(examples)
        return self

    def check(self, examples: list[Choice]) -> None:
        """Errors: UserError naming the first example of which nobody said which ending is right."""
        for example in examples:
            if example.label is None:
                raise UserError(f"{example.source}: no label; name the column of the right ending with --task.label")

    def encode(self, examples: list[Choice], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """A sequence an ending; target: 1 for the right one, 0 for others, None where nobody said."""
        starts = framing.pieces(tokenizer, [example.context for example in examples])
        whole = [f"{e.lead} {ending}" if e.lead else ending for e in examples for ending in e.endings]
        endings = iter(framing.pieces(tokenizer, whole))
        sequences = []
        for number, (example, start) in enumerate(zip(examples, starts, strict=True)):
            for part in range(len(example.endings)):
                [sequence] = framing.fit(tokenizer, [start, next(endings)], max_length)
                target = None if example.label is None else int(part == example.label)
                sequences.append(replace(sequence, example=number, part=part, target=target))
        return sequences

    def training(self, sequences: list[Sequence]) -> list[Sequence]:
        return sequences

    def reads(self, sequence: Sequence) -> np.ndarray:  # noqa: ARG002
        return FIRST

    def head(self, config: BertConfig, width: int) -> PooledHead:
        return PooledHead(width, 1, config.hidden_dropout_prob, choice)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        """Endings of one example are one group."""
        _, group = np.unique([sequence.example for sequence in sequences], return_inverse=True)
        weight = np.array([sequence.target or 0 for sequence in sequences], np.float32)
        return Targets(index, group.astype(np.int64), weight)

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Choice]) -> list[Chosen]:
        found = [softmax(np.concatenate(rows)[:, 0]) for rows in by_example(outputs, sequences, len(examples))]
        return [Chosen(int(each.argmax()), each.tolist()) for each in found]

    def read_prediction(self, values: dict[str, Any], example: Choice, place: str) -> Chosen:
        said = str(answer_of(values, "choice", place))
        number = whole_number_of(said)
        if number is None or number >= len(example.endings):
            last = len(example.endings) - 1
            raise UserError(f"{place}: the prediction is {said[:20]!r}, and the endings are 0 to {last}")
        return Chosen(number, [])

    def score(self, predictions: list[Chosen], examples: list[Choice]) -> dict[str, float]:
        """accuracy. Errors: as `check`."""
        self.check(examples)
        right = [found.choice == example.label for found, example in zip(predictions, examples, strict=True)]
        return {"accuracy": float(np.mean(right))}

    def constants(self, examples: list[Choice]) -> list[list[Chosen]]:
        most = max(len(example.endings) for example in examples)
        return [[_sure(min(place, len(e.endings) - 1), len(e.endings)) for e in examples] for place in range(most)]

    def assess(self, predictions: list[Chosen], examples: list[Choice]) -> Assessment:
        self.check(examples)
        return assess_choices(predictions, examples)


def _sure(place: int, endings: int) -> Chosen:
    return Chosen(place, [float(i == place) for i in range(endings)])
