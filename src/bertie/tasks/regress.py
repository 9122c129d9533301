"""Regression: a number for one text or a pair, as in STS-B. A linear layer on the pooled [CLS], squared error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from bertie.config import NoFlag
from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UserError, require_range
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads import PooledHead
from bertie.model.losses import squared_error
from bertie.model.text_pooling import TaskPooling, TextPooling
from bertie.tasks.data.prediction_files import answer_of, require_number
from bertie.tasks.data.rows import describe_bad_number, parse_label_number
from bertie.tasks.data.texts import SCORES, Example, TextColumns, TextReader
from bertie.tasks.encoding import (
    by_example,
    cls_targets,
    encode_texts,
    every_sequence,
    pooled_position,
    require_pairs_to_attend,
    text_input_form,
)
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.regress import evaluate_numbers
from bertie.tasks.example_sums import ExampleSums, number_sums
from bertie.tasks.metrics import regression_scores
from bertie.tasks.predictions import NumberPrediction
from bertie.tasks.relevance import no_relevance
from bertie.tasks.score_rows import read_rows, score_in_order
from bertie.tasks.task import SEQUENCE, ForeignHead
from bertie.text.truncation import Truncation


@dataclass(frozen=True)
class Regress:
    """Predict a number for one text or a pair of texts."""

    facts = HeadFacts("regression", "a number", "text-classification", "text", "regression")
    prediction, labels = NumberPrediction, ()
    unit, metric, untrainable = SEQUENCE, "spearman", ""
    encode, training_sequences, head_positions = encode_texts, every_sequence, pooled_position
    prediction_rows, score_rows = read_rows, score_in_order

    kind: Literal["regress"] = "regress"
    text: str = ""
    """Column of the text; empty: detected from the header."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs; empty: detected from the header."""
    label: str = ""
    """Column of the number; empty: detected from the header."""
    truncation: Truncation = "head"
    """Part to read of a text that is too long. head: the beginning. tail: the end. head_tail: both, a quarter of the
    tokens from the beginning. windows: all of it, in overlapping windows."""
    doc_stride: int = 0
    """Stride of the windows: tokens from the start of one to the start of the next; 0: half a window."""
    pooling: TaskPooling = "model"
    """What the head reads. model: what the model's `classifier_pooling` says, which for BERT is always token. token: the state of
    one token ([CLS], or the last one if the model is causal). mean: the mean of all tokens. max: the maximum over all tokens; the
    texts of a pair are encoded separately and combined. attention: the same for pairs whose texts attend to each other, with a
    second BiLSTM (GLUE's baselines)."""
    paired: NoFlag[bool | None] = None
    """Whether examples are pairs; set from the training examples."""

    def __post_init__(self) -> None:
        require_range("task", self, "doc_stride", low=0)

    @property
    def text_pooling(self) -> TaskPooling:
        return self.pooling

    def with_pooling(self, pooling: TextPooling, paired: bool | None) -> Self:
        return replace(self, pooling=pooling, paired=paired)

    @property
    def input_form(self) -> str:
        return text_input_form(self)

    @property
    def reader(self) -> TextReader:
        return TextReader(TextColumns(self.text, self.text_pair, self.label), SCORES, numbers=True, paired=self.paired)

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        known = head.outputs == 1 and head.problem_type in ("", "regression")
        return cls() if head.shape == "text" and known else None

    def fit(self, examples: list[Example]) -> Regress:
        """Return the task, knowing whether examples are pairs.

        Raises UserError if a number is missing or all are equal, and UsageError if `pooling` needs pairs.
        """
        self.validate(examples)
        require_pairs_to_attend(self.pooling, examples)
        if len({parse_label_number(example.label) for example in examples}) == 1:
            raise UserError(
                f"every example has the score {examples[0].label} ({examples[0].source} …): nothing to learn"
            )
        return replace(self, paired=examples[0].text_pair is not None)

    def validate(self, examples: list[Example]) -> None:
        """Check that every example has a number that can be learned. Raises UserError for the first that has not."""
        for example in examples:
            if parse_label_number(example.label) is None:
                gold = example.label
                problem = "no score" if gold is None else f"the score {describe_bad_number(gold)}"
                raise UserError(f"{example.source}: {problem}; name its column with --task.label")

    def gold(self, examples: list[Example]) -> list[float | None]:
        """Return the number of each example, or None without one."""
        return [parse_label_number(example.label) for example in examples]

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        return PooledHead(width, 1, config.hidden_dropout_prob, squared_error, config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return cls_targets(sequences, index, np.float32)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[NumberPrediction]:
        """Return the number of each example. The outputs of several windows are averaged."""
        return [
            NumberPrediction(float(np.concatenate(rows).mean()))
            for rows in by_example(outputs, sequences, len(examples))
        ]

    def relevance(self, label: str) -> Callable[[NumberPrediction], float] | None:
        no_relevance(self, label)
        return None if self.paired is False else lambda prediction: prediction.score

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> NumberPrediction:  # noqa: ARG002
        return NumberPrediction(require_number(answer_of(values, "score", place), place))

    def score(self, predictions: list[NumberPrediction], examples: list[Example]) -> dict[str, float]:
        """Return pearson, spearman and mse, as `regression_scores`. Raises UserError as `validate`."""
        self.validate(examples)
        gold = [float(example.label or 0) for example in examples]
        return regression_scores(gold, [prediction.score for prediction in predictions])

    def example_sums(
        self, predictions: list[NumberPrediction], examples: list[Example], metric: str
    ) -> ExampleSums | None:
        return number_sums([p.score for p in predictions], [float(e.label or 0) for e in examples], metric)

    def constant_predictions(self, examples: list[Example]) -> list[list[NumberPrediction]]:
        """Return one baseline: the mean of the gold numbers."""
        return [[NumberPrediction(float(np.mean([float(example.label or 0) for example in examples])))] * len(examples)]

    def evaluate(self, predictions: list[NumberPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        return evaluate_numbers(predictions, examples)
