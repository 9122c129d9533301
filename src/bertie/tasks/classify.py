"""Classification of one text or a pair: a linear layer on BERT's pooled [CLS] (Devlin et al. 2018, section 4.1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np

from bertie.base import console
from bertie.base.config import check_ranges
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UsageError, shorten
from bertie.examples.reader import Reader
from bertie.examples.rows import Row, parse_finite
from bertie.examples.texts import Example, LabeledTexts
from bertie.model.head_facts import HeadFacts
from bertie.tasks import classes, encoding, text_options
from bertie.tasks.class_weights import ClassWeights, fit_weights, weigh
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.passages import texts_of
from bertie.tasks.example_sums import ExampleSums, class_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.relevance import class_relevance
from bertie.tasks.task import SEQUENCE, TaskDefaults, class_head, own_pooling, require_distinct


@dataclass(frozen=True)
class Classify(TaskDefaults):
    """Predict a class for one text or a pair of texts."""

    facts = HeadFacts("classification", "classes", "text-classification", "text")
    prediction = ClassPrediction
    unit = SEQUENCE
    text_pooling = own_pooling
    input_form = encoding.text_input_form
    encode = encoding.encode_texts
    decode = encoding.decode_texts
    head_positions = encoding.pooled_position
    as_trained = encoding.paired_as_trained
    predicted = classes.most_probable
    metric = "accuracy"
    head = class_head
    constant_predictions = classes.constant_classes
    relevance = class_relevance

    kind: Literal["classify"] = "classify"
    text: text_options.TextColumn = ""
    text_pair: text_options.PairColumn = ""
    label: str = ""
    """Column of the label; empty: detected from the header."""
    labels: tuple[str, ...] = ()
    """The classes; empty: the labels of the training examples, sorted."""
    class_weights: ClassWeights = "none"
    """Weights of the classes in the loss. balanced: n / (number of classes · n_c) for a class with n_c of n examples. A table:
    one weight for each class."""
    no_label: text_options.UnknownLabels = ()
    join_labels: text_options.JoinLabels = False
    truncation: text_options.TextTruncation = "head"
    doc_stride: text_options.WindowStride = 0
    pooling: text_options.HeadReads = "model"
    paired: text_options.ArePairs = None

    def __post_init__(self) -> None:
        check_ranges("task", self)
        require_distinct(self.labels)

    @property
    def reader(self) -> Reader:
        columns = (self.text, self.text_pair, self.label)
        return Reader(
            LabeledTexts(
                *columns, paired=self.paired, no_label=self.no_label, classes=self.labels, join=self.join_labels
            )
        )

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        known = head.problem_type == "single_label_classification" or (not head.problem_type and head.outputs > 1)
        return cls(labels=head.labels) if head.shape == "text" and known else None

    def fit(self, examples: list[Example]) -> Classify:
        """Return the task with the classes of the training examples, unless `labels` names them.

        Raises:
            UserError: A label is missing or unknown, or all labels are equal.
            UsageError: `labels` names a single class, `pooling` needs pairs, or `class_weights` lack a class.
        """
        labels = classes.classes_of(self.labels, examples)
        if not self.labels:
            _require_classes(labels, examples[0].source)
        fitted = replace(self, labels=labels, paired=encoding.are_pairs(self, examples))
        fitted.validate(examples)
        counts = Counter(example.label for example in examples)
        return replace(fitted, class_weights=fit_weights(self.class_weights, labels, [counts[each] for each in labels]))

    def validate(self, examples: list[Example]) -> None:
        """Check that every example has a label that is one of the classes.

        Raises UserError for the first that has not.
        """
        classes.require_classes(self.labels, examples)

    def gold(self, examples: list[Example]) -> list[int | None]:
        """Return the index of each example's label in `labels`, or None without a known label."""
        index = {label: i for i, label in enumerate(self.labels)}
        return [index.get(str(example.label)) for example in examples]

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return weigh(encoding.cls_targets(sequences, index), self.class_weights, self.labels)

    def with_labels_of(self, rows: list[Row], examples: list[Example]) -> Classify:
        labels = classes.labels_in(rows, examples)
        if len(labels) == 2:
            console.info(f"f1 scores {shorten(labels[1])!r}; --task.labels names the classes, if there are others too")
        return replace(self, labels=labels)

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> ClassPrediction:  # noqa: ARG002
        return classes.read_class(self.labels, values, place)

    def sums(self, predictions: list[ClassPrediction], examples: list[Example]) -> dict[str, ExampleSums]:
        self.validate(examples)
        return class_sums(*classes.gold_and_predicted(predictions, examples), self.labels)

    def evaluate(self, predictions: list[ClassPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        return classes.evaluate_classes(self.labels, predictions, examples, lambda i: texts_of(examples[i]))


def _require_classes(labels: tuple[str, ...], place: str) -> None:
    """Raise a UsageError if all labels are numbers and some have a fraction: each would be a class of its own."""
    numbers = {label: parse_finite(label) for label in labels}
    fractions = [label for label, number in numbers.items() if number is not None and not number.is_integer()]
    if fractions and None not in numbers.values():
        problem = f"{place} …: the labels are numbers such as {fractions[0]}"
        raise UsageError(problem, "For scores use `bertie finetune regress`; for classes pass --task.labels")
