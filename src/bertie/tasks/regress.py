"""Regression: a number, or several, for one text or a pair, as in STS-B. A linear layer on the pooled [CLS], squared error.

The head learns standardized numbers, so any scale is learned alike: see scale.py.

C  outputs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from bertie.base.config import NoFlag, check_ranges
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UserError, join_names, shorten
from bertie.examples.reader import Reader
from bertie.examples.rows import Row, describe_bad_number, parse_label_number
from bertie.examples.texts import SCORES, Example, LabeledTexts
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.model.losses.losses import squared_error
from bertie.tasks import encoding, text_options
from bertie.tasks.classes import ADD_OTHERS
from bertie.tasks.evaluation.findings import Evaluation, Histogram, Scatter, Table
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.example_sums import ExampleSums, number_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.metrics import is_constant
from bertie.tasks.prediction_files import answer_of, require_number
from bertie.tasks.predictions import NumberPrediction, NumbersPrediction, rounded
from bertie.tasks.scale import NumberScale
from bertie.tasks.task import SEQUENCE, TaskDefaults, own_pooling, require_distinct


@dataclass(frozen=True)
class Regress(TaskDefaults):
    """Predict a number, or several, for one text or a pair of texts."""

    facts = HeadFacts("regression", "a number", "text-classification", "text", "regression")
    prediction = NumberPrediction | NumbersPrediction
    unit = SEQUENCE
    text_pooling = own_pooling
    input_form = encoding.text_input_form
    encode = encoding.encode_texts
    head_positions = encoding.pooled_position
    metric = "spearman"

    kind: Literal["regress"] = "regress"
    text: text_options.TextColumn = ""
    text_pair: text_options.PairColumn = ""
    label: str = ""
    """Column of the number, or of a list of several; empty: detected from the header."""
    labels: tuple[str, ...] = ()
    """Names of several numbers: their columns, or what to call those of a list; empty: one number, or LABEL_0, LABEL_1, …"""
    no_label: text_options.UnknownLabels = ()
    truncation: text_options.TextTruncation = "head"
    doc_stride: text_options.WindowStride = 0
    pooling: text_options.HeadReads = "model"
    paired: text_options.ArePairs = None
    activation: NoFlag[Literal["identity", "sigmoid"]] = "identity"
    """Function that turns the output into the number; set from the files of a cross-encoder of sentence-transformers."""
    number_scale: NoFlag[NumberScale] = NumberScale()  # pyright: ignore[reportIncompatibleMethodOverride]
    """Mean and standard deviation of the numbers, which the head learns standardized; set from the training examples."""

    def __post_init__(self) -> None:
        check_ranges("task", self)
        require_distinct(self.labels)

    @property
    def reader(self) -> Reader:
        columns = (self.text, self.text_pair, self.label, SCORES, True, self.paired, self.no_label)
        return Reader(LabeledTexts(*columns, outputs=self.labels))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        known = head.problem_type == "regression" or (head.outputs == 1 and not head.problem_type)
        sigmoid = head.activation == "Sigmoid"
        task = cls(labels=head.labels if head.outputs > 1 else (), activation="sigmoid" if sigmoid else "identity")
        return task if head.shape == "text" and known else None

    def as_trained(self, trained: Regress) -> Regress:
        """Return the task with the activation, the scale and the number of texts of the trained one."""
        task = encoding.paired_as_trained(self, trained)
        return replace(task, activation=trained.activation, number_scale=trained.number_scale)

    def fit(self, examples: list[Example]) -> Regress:
        """Return the task with the scale of the numbers and their names, and whether examples are pairs.

        Raises UserError if a number is missing or all of an output are equal, and UsageError if `pooling` needs pairs.
        """
        count = len(examples[0].numbers)
        labels = self.labels or tuple(f"LABEL_{number}" for number in range(count))
        task = replace(self, labels=labels, paired=encoding.are_pairs(self, examples), activation="identity")
        task.validate(examples)
        gold_NC = task._gold(examples)
        if constant := [output for output, numbers in enumerate(gold_NC.T) if is_constant(numbers)]:
            output = constant[0]
            of = f" for {labels[output]!r}" if labels else ""
            only = f"{(examples[0].numbers or (examples[0].label,))[output]}{of} ({examples[0].source} …)"
            raise UserError(f"every example has the score {only}: nothing to learn", ADD_OTHERS)
        return replace(task, number_scale=NumberScale.of(gold_NC))

    def validate(self, examples: list[Example]) -> None:
        """Check that every example has numbers that can be learned. Raises UserError for the first that has not."""
        for example in examples:
            if self._numbers(example) is None:
                gold = example.label
                problem = "no score" if gold is None else f"the score {describe_bad_number(gold)}"
                if self.labels:
                    found = len(example.numbers) or "no list of"
                    problem = f"found {found} numbers, expected {len(self.labels)}: {join_names(self.labels)}"
                raise UserError(f"{example.source}: {problem}; name its column with --task.label")

    def _numbers(self, example: Example) -> tuple[float, ...] | None:
        """Return the gold numbers of an example; None if they are unknown, or not as many as the task has."""
        labels = example.numbers or (example.label,)
        numbers = [number for label in labels if (number := parse_label_number(label)) is not None]
        return tuple(numbers) if len(numbers) == len(labels) == (len(self.labels) or 1) else None

    def _gold(self, examples: list[Example]) -> np.ndarray:
        """Return the gold numbers: float64 [N, C]. Raises UserError as `validate`."""
        self.validate(examples)
        return np.array([self._numbers(example) for example in examples], float)

    def gold(self, examples: list[Example]) -> list[np.ndarray | None]:
        """Return the standardized numbers of each example, float32 [C], or None without them."""
        numbers = map(self._numbers, examples)
        return [None if each is None else self.number_scale.standardized(each) for each in numbers]

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        return PooledHead(width, len(self.labels) or 1, head_dropout(config), squared_error, config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return encoding.row_targets(sequences, index, len(self.labels) or 1)

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]) -> list[Any]:
        """Return the prediction of each example. The numbers of several windows are averaged, on the scale of the examples."""
        numbers = [self.number_scale.restored(output.astype(np.float64)) for output in outputs]
        if self.activation == "sigmoid":
            numbers = list(map(encoding.sigmoid, numbers))
        return encoding.decode_texts(self, numbers, sequences, examples)

    def predicted(self, numbers_C: np.ndarray) -> NumberPrediction | NumbersPrediction:
        return self._predictions(numbers_C[None])[0]

    def _predictions(self, numbers_NC: np.ndarray) -> list[Any]:
        rows = rounded(numbers_NC.tolist())
        if not self.labels:
            return [NumberPrediction(row[0]) for row in rows]
        return [NumbersPrediction(dict(zip(self.labels, row, strict=True))) for row in rows]

    def without_scale(self) -> Regress:
        return replace(self, number_scale=NumberScale())

    def relevance(self, label: str) -> Callable[[Any], float] | None:
        encoding.no_relevance(self, label)
        return None if self.paired is False or self.labels else lambda prediction: prediction.score

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> Any:  # noqa: ARG002
        if not self.labels:
            return NumberPrediction(require_number(answer_of(values, "score", place), place))
        scores = answer_of(values, "scores", place)
        scores = dict(zip(self.labels, scores, strict=False)) if isinstance(scores, list) else scores
        if not isinstance(scores, dict) or scores.keys() != {*self.labels}:
            raise UserError(
                f"{place}: the scores are {shorten(str(scores))}, but they are of {join_names(self.labels)}"
            )
        return NumbersPrediction({name: require_number(scores[name], place) for name in self.labels})

    def sums(self, predictions: list[Any], examples: list[Example]) -> dict[str, ExampleSums]:
        """Return the rows of pearson, spearman and mse. Raises UserError as `validate`."""
        return number_sums(self._gold(examples), _predicted(predictions))

    def constant_predictions(self, examples: list[Example]) -> list[list[Any]]:
        """Return one baseline: the mean of the gold numbers."""
        mean_1C = self._gold(examples).mean(0, keepdims=True)
        return [self._predictions(mean_1C) * len(examples)]

    def with_labels_of(self, rows: list[Row], examples: list[Example]) -> Regress:
        """Return the task with the names of the predictions, if they have several numbers."""
        names = next((tuple(scores) for row in rows if isinstance(scores := row.values.get("scores"), dict)), ())
        count = len(examples[0].numbers) if examples else 0
        return replace(self, labels=names or tuple(f"LABEL_{number}" for number in range(count)))

    def evaluate(self, predictions: list[Any], examples: list[Example]) -> Evaluation:
        """Return the evaluation: the loss is the squared residual, predicted − gold; of several outputs the mean."""
        gold_NC, predicted_NC = self._gold(examples), _predicted(predictions)
        residuals_NC = predicted_NC - gold_NC
        names = self.labels or ("",)

        def passage(i: int) -> Passage:
            facts = {}
            for name, *numbers in zip(names, gold_NC[i], predicted_NC[i], residuals_NC[i], strict=True):
                texts = (
                    form.format(number) for form, number in zip(("{:g}", "{:.3g}", "{:+.3g}"), numbers, strict=True)
                )
                facts |= dict(zip((f"gold {name}", f"predicted {name}", f"residual {name}"), texts, strict=True))
            return Passage({name.strip(): value for name, value in facts.items()}, texts_of(examples[i]))

        findings = [
            finding
            for name, *sides in zip(names, gold_NC.T, predicted_NC.T, strict=True)
            for finding in _findings(name, *sides)
        ]
        gold = gold_NC.tolist() if self.labels else gold_NC[:, 0].tolist()
        return Evaluation({"gold": gold}, (residuals_NC**2).mean(1), "squared residual", tuple(findings), passage)


def _predicted(predictions: list[Any]) -> np.ndarray:
    """Return the predicted numbers: float64 [N, C]."""
    return np.array([list(prediction.scores.values()) for prediction in predictions], float)


def _findings(name: str, gold: np.ndarray, predicted: np.ndarray) -> tuple[Scatter, Table, Histogram]:
    """Return the charts and the table of one output. name: empty if there is no other."""
    residuals, suffix, key = predicted - gold, f": {name}" * bool(name), f"-{name}" * bool(name)
    measures = {
        "mean absolute error": np.abs(residuals).mean(),
        "mean absolute error of always predicting the mean": np.abs(gold - gold.mean()).mean(),
        "root mean squared error": np.sqrt((residuals**2).mean()),
        "mean residual": residuals.mean(),
    }
    rows = [(measure, float(value)) for measure, value in measures.items()]
    caption = "number of examples, by residual"
    return (
        Scatter(f"scatter{key}", f"Gold and predicted{suffix}", gold, predicted, "gold", "predicted", diagonal=True),
        Table(f"errors{key}", f"Errors{suffix}", ("", "value"), rows),
        Histogram(f"residuals{key}", f"Residuals{suffix}", _bars(residuals), "predicted − gold", caption),
    )


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
