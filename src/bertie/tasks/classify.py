"""Classification of one text or a pair: a linear layer on BERT's pooled [CLS] (Devlin et al. 2018, section 4.1)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Self

import numpy as np

from bertie import console
from bertie.config import NoFlag, Range, check_ranges
from bertie.console import percent
from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError, join_names, shorten
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads import PooledHead
from bertie.model.text_pooling import TaskPooling
from bertie.tasks import encoding
from bertie.tasks.class_weights import ClassWeights, fit_weights, weigh
from bertie.tasks.data.prediction_files import answer_of
from bertie.tasks.data.rows import none_of, parse_finite, parse_label
from bertie.tasks.data.spellings import class_of
from bertie.tasks.data.texts import Example, TextReader
from bertie.tasks.evaluation.calibration import choice_calibration
from bertie.tasks.evaluation.findings import Evaluation, class_findings
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.example_sums import ExampleSums, class_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.metrics import classification_scores
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.relevance import class_relevance
from bertie.tasks.score_rows import labels_in, read_rows, score_in_order
from bertie.tasks.task import SEQUENCE, Scoring
from bertie.text.truncation import Truncation


@dataclass(frozen=True)
class Classify:
    """Predict a class for one text or a pair of texts."""

    facts = HeadFacts("classification", "classes", "text-classification", "text")
    prediction, added_tokens, beside_head = ClassPrediction, (), ""
    unit, metric, untrainable = SEQUENCE, "accuracy", ""
    text_pooling, input_form = encoding.own_pooling, encoding.text_input_form
    encode, training_sequences, decode = encoding.encode_texts, encoding.every_sequence, encoding.decode_texts
    head_positions, with_pooling = encoding.pooled_position, encoding.with_own_pooling
    as_read = encoding.read_alike
    prediction_rows, relevance, as_trained = read_rows, class_relevance, encoding.paired_as_trained

    kind: Literal["classify"] = "classify"
    text: str = ""
    """Column of the text; empty: detected from the header."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs; empty: detected from the header."""
    label: str = ""
    """Column of the label; empty: detected from the header."""
    labels: tuple[str, ...] = ()
    """The classes; empty: the labels of the training examples, sorted."""
    class_weights: ClassWeights = "none"
    """Weights of the classes in the loss. balanced: n / (number of classes · n_c) for a class with n_c of n examples. A table:
    one weight for each class."""
    no_label: tuple[str, ...] = ()
    """Labels that mean that the label is unknown, such as -1; empty: those that leave no doubt, such as SNLI's -1 and MNLI's
    dash."""
    truncation: Truncation = "head"
    """Part to read of a text that is too long. head: the beginning. tail: the end. head_tail: both, a quarter of the
    tokens from the beginning. windows: all of it, in overlapping windows."""
    doc_stride: Annotated[int, Range(0)] = 0
    """Stride of the windows: tokens from the start of one to the start of the next; 0: half a window."""
    pooling: TaskPooling = "model"
    """What stands for a text, or a pair, in the head. model: what the model's `classifier_pooling` says, which for BERT is
    token. The others are explained in the documentation of fine-tuning."""
    paired: NoFlag[bool | None] = None
    """Whether examples are pairs; set from the training examples."""

    def __post_init__(self) -> None:
        check_ranges("task", self)
        if len(set(self.labels)) < len(self.labels):
            raise UsageError(f"task.labels names a class twice: {join_names(self.labels)}")

    @property
    def reader(self) -> TextReader:
        return TextReader(
            self.text, self.text_pair, self.label, paired=self.paired, no_label=self.no_label, classes=self.labels
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
        for example in examples:
            if example.label is None:
                unlabeled = all(other.label is None for other in examples)
                remedy = "name its column with --task.label" if unlabeled else "add it or remove the example"
                raise UserError(f"{example.source}: no label to train on; {remedy}")
        if len(self.labels) == 1:
            only = shorten(self.labels[0])
            raise UsageError(f"task.labels names one class, {only!r}: name all classes, or omit it to detect them")
        labels: tuple[str, ...] = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            only = f"{shorten(min(labels))!r} ({examples[0].source} …)"
            raise UserError(f"every example has the label {only}: nothing to learn")
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
        known = set(self.labels)
        for example in examples:
            if example.label not in known:
                raise UserError(f"{example.source}: {none_of(example.label, self.labels, 'classes')}")

    def gold(self, examples: list[Example]) -> list[int | None]:
        """Return the index of each example's label in `labels`, or None without a known label."""
        index = {label: i for i, label in enumerate(self.labels)}
        return [index.get(str(example.label)) for example in examples]

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        if not self.labels:
            raise UsageError("the task has no classes yet: fit it on training examples, or set task.labels")
        return PooledHead(width, len(self.labels), head_dropout(config), layers=config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return weigh(encoding.cls_targets(sequences, index, np.int64), self.class_weights, self.labels)

    def predicted(self, logits_C: np.ndarray) -> ClassPrediction:
        """Return the most probable class."""
        probabilities = {label: float(p) for label, p in zip(self.labels, encoding.softmax(logits_C), strict=True)}
        return ClassPrediction(self.labels[int(logits_C.argmax())], probabilities)

    def score_rows(self, given: Scoring) -> dict[str, float]:
        labels = self.labels or labels_in(given)
        if len(labels) == 2 and not self.labels:
            console.info(
                f"f1 is that of {shorten(labels[1])!r}; --task.labels names the classes, if there are others too"
            )
        return score_in_order(replace(self, labels=labels), given)

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> ClassPrediction:  # noqa: ARG002
        given = parse_label(answer_of(values, "label", place), "label", place)
        predicted = given and class_of(given, self.labels)
        if predicted not in self.labels:
            problem = none_of(predicted, self.labels, "classes")
            raise UserError(f"{place}: {problem}; name all classes with --task.labels")
        return ClassPrediction(predicted, {})

    def score(self, predictions: list[ClassPrediction], examples: list[Example]) -> dict[str, float]:
        """Return accuracy, f1 and matthews, as `classification_scores`. Raises UserError as `validate`."""
        self.validate(examples)
        gold = [str(example.label) for example in examples]
        return classification_scores(gold, [prediction.label for prediction in predictions], list(self.labels))

    def example_sums(
        self, predictions: list[ClassPrediction], examples: list[Example], metric: str
    ) -> ExampleSums | None:
        return class_sums(self.labels, [p.label for p in predictions], [str(e.label) for e in examples], metric)

    def constant_predictions(self, examples: list[Example]) -> list[list[ClassPrediction]]:
        """Return one baseline per class: always this class."""
        every = [ClassPrediction(label, {name: float(name == label) for name in self.labels}) for label in self.labels]
        return [[prediction] * len(examples) for prediction in every]

    def evaluate(self, predictions: list[ClassPrediction], examples: list[Example]) -> Evaluation:
        """Return the evaluation: the loss is −log of the gold label's probability."""
        self.validate(examples)
        gold = [str(example.label) for example in examples]
        probabilities = [np.array([each.probabilities[label] for label in self.labels]) for each in predictions]
        calibration, losses = choice_calibration(probabilities, [self.labels.index(label) for label in gold])

        def passage(i: int) -> Passage:
            found = predictions[i]
            sides = {"gold": gold[i], "predicted": found.label}
            facts = {side: f"{label}, {percent(found.probabilities[label])}" for side, label in sides.items()}
            return Passage(facts, texts_of(examples[i]))

        findings = (*class_findings(gold, [each.label for each in predictions], self.labels, "class"), calibration)
        return Evaluation({"gold": gold}, losses, "−log of the gold label's probability, in nats", findings, passage)


def _require_classes(labels: tuple[str, ...], place: str) -> None:
    """Raise a UsageError if all labels are numbers and some have a fraction: each would be a class of its own."""
    numbers = {label: parse_finite(label) for label in labels}
    fractions = [label for label, number in numbers.items() if number is not None and not number.is_integer()]
    if fractions and None not in numbers.values():
        problem = f"{place} …: the labels are numbers such as {fractions[0]}, which could be scores"
        raise UsageError(problem, "`bertie finetune regress` learns scores; name classes with --task.labels")
