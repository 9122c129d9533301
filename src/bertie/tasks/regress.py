"""Regression: a number for one text or a pair, as in STS-B. A linear layer on the pooled [CLS], squared error."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from bertie.base.config import NoFlag, ranges
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UserError
from bertie.examples.reader import Reader
from bertie.examples.rows import describe_bad_number, parse_label_number
from bertie.examples.texts import SCORES, Example, LabeledTexts
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.model.losses.losses import squared_error
from bertie.tasks import encoding, text_options
from bertie.tasks.evaluation.findings import Evaluation, Histogram, Scatter, Table
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.example_sums import ExampleSums, number_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.metrics import regression_scores
from bertie.tasks.prediction_files import answer_of, require_number
from bertie.tasks.predictions import NumberPrediction
from bertie.tasks.task import SEQUENCE, TaskDefaults, own_pooling


@dataclass(frozen=True)
class Regress(TaskDefaults):
    """Predict a number for one text or a pair of texts."""

    facts = HeadFacts("regression", "a number", "text-classification", "text", "regression")
    prediction = NumberPrediction
    unit = SEQUENCE
    labels = ()
    text_pooling = own_pooling
    input_form = encoding.text_input_form
    encode = encoding.encode_texts
    decode = encoding.decode_texts
    head_positions = encoding.pooled_position
    metric = "spearman"

    kind: Literal["regress"] = "regress"
    text: text_options.TextColumn = ""
    text_pair: text_options.PairColumn = ""
    label: str = ""
    """Column of the number; empty: detected from the header."""
    no_label: text_options.UnknownLabels = ()
    truncation: text_options.TextTruncation = "head"
    doc_stride: text_options.WindowStride = 0
    pooling: text_options.HeadReads = "model"
    paired: text_options.ArePairs = None
    activation: NoFlag[Literal["identity", "sigmoid"]] = "identity"
    """Function that turns the output into the number; set from the files of a cross-encoder of sentence-transformers."""

    __post_init__ = ranges("task")

    @property
    def reader(self) -> Reader:
        return Reader(LabeledTexts(self.text, self.text_pair, self.label, SCORES, True, self.paired, self.no_label))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        known = head.outputs == 1 and head.problem_type in ("", "regression")
        sigmoid = head.activation == "Sigmoid"
        return cls(activation="sigmoid" if sigmoid else "identity") if head.shape == "text" and known else None

    def as_trained(self, trained: Regress) -> Regress:
        """Return the task with the activation and the number of texts of the trained one."""
        return replace(encoding.paired_as_trained(self, trained), activation=trained.activation)

    def fit(self, examples: list[Example]) -> Regress:
        """Return the task, knowing whether examples are pairs.

        Raises UserError if a number is missing or all are equal, and UsageError if `pooling` needs pairs.
        """
        self.validate(examples)
        if len({parse_label_number(example.label) for example in examples}) == 1:
            only = f"{examples[0].label} ({examples[0].source} …)"
            raise UserError(f"every example has the score {only}: nothing to learn")
        return replace(self, paired=encoding.are_pairs(self, examples), activation="identity")

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
        return PooledHead(width, 1, head_dropout(config), squared_error, config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return encoding.cls_targets(sequences, index, np.float32)

    def predicted(self, logits_C: np.ndarray) -> NumberPrediction:
        """Return the only output, after the activation."""
        number = float(logits_C[0])
        return NumberPrediction(0.5 + 0.5 * math.tanh(0.5 * number) if self.activation == "sigmoid" else number)

    def relevance(self, label: str) -> Callable[[NumberPrediction], float] | None:
        encoding.no_relevance(self, label)
        return None if self.paired is False else lambda prediction: prediction.score

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> NumberPrediction:  # noqa: ARG002
        return NumberPrediction(require_number(answer_of(values, "score", place), place))

    def score(self, predictions: list[NumberPrediction], examples: list[Example]) -> dict[str, float]:
        """Return pearson, spearman and mse, as `regression_scores`. Raises UserError as `validate`."""
        return regression_scores(*self._sides(predictions, examples))

    def sums(self, predictions: list[NumberPrediction], examples: list[Example]) -> dict[str, ExampleSums]:
        return number_sums(*self._sides(predictions, examples))

    def _sides(self, predictions: list[NumberPrediction], examples: list[Example]) -> tuple[list[float], list[float]]:
        """Return the gold numbers and the predicted ones."""
        self.validate(examples)
        return [float(example.label or 0) for example in examples], [prediction.score for prediction in predictions]

    def constant_predictions(self, examples: list[Example]) -> list[list[NumberPrediction]]:
        """Return one baseline: the mean of the gold numbers."""
        return [[NumberPrediction(float(np.mean(self._sides([], examples)[0])))] * len(examples)]

    def evaluate(self, predictions: list[NumberPrediction], examples: list[Example]) -> Evaluation:
        """Return the evaluation: the loss is the squared residual, predicted − gold."""
        gold, predicted = map(np.array, self._sides(predictions, examples))
        residuals = predicted - gold

        def passage(i: int) -> Passage:
            facts = {"gold": f"{gold[i]:g}", "predicted": f"{predicted[i]:.3g}", "residual": f"{residuals[i]:+.3g}"}
            return Passage(facts, texts_of(examples[i]))

        measures = {
            "mean absolute error": np.abs(residuals).mean(),
            "mean absolute error of always predicting the mean": np.abs(gold - gold.mean()).mean(),
            "root mean squared error": np.sqrt((residuals**2).mean()),
            "mean residual": residuals.mean(),
        }
        caption = "number of examples, by residual"
        findings = (
            Scatter("scatter", "Gold and predicted", gold, predicted, "gold", "predicted", diagonal=True),
            Table("errors", "Errors", ("", "value"), [(name, float(value)) for name, value in measures.items()]),
            Histogram("residuals", "Residuals", _bars(residuals), "predicted − gold", caption),
        )
        return Evaluation({"gold": gold.tolist()}, residuals**2, "squared residual", findings, passage)


def _bars(values: np.ndarray) -> dict[str, int]:
    """Return a histogram of at most 20 bars, whose width is 1, 2 or 5 times a power of ten.

    The name of a bar is its lower edge.
    """
    spread = max(float(values.max() - values.min()), 1e-6 * float(np.abs(values).max()), 1e-6)
    power = 10.0 ** np.floor(np.log10(spread / 20))
    width = next(step * power for step in (1, 2, 5, 10, 20) if spread / (step * power) <= 19)
    numbers = np.floor(values / width).astype(np.int64)
    counts = np.bincount(numbers - numbers.min())
    decimals = max(0, -int(np.floor(np.log10(width) + 1e-9)))
    return {f"{(numbers.min() + i) * width + 0.0:.{decimals}f}": int(count) for i, count in enumerate(counts)}
