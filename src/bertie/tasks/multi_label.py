"""Multi-label classification of one text or a pair: for each label a sigmoid on the pooled [CLS], binary cross-entropy.

A label is predicted if its probability reaches the label's threshold, which is tuned on dev examples. Training begins with the
frequencies of the labels: see `start_with_frequencies`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
import torch

from bertie.base.config import NoFlag, check_ranges
from bertie.base.console import percent
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UsageError, UserError, join_names
from bertie.examples.label_sets import LabelSetExample, LabelSets, parse_labels
from bertie.examples.labels import class_of
from bertie.examples.reader import DataFormat, Reader
from bertie.examples.rows import Row, distinct_columns, none_of
from bertie.examples.texts import LabeledTexts
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.model.losses.losses import binary_cross_entropy
from bertie.tasks import encoding, text_options
from bertie.tasks.class_weights import ClassWeights, fit_weights, weight_array
from bertie.tasks.classes import ADD_OTHERS, named_labels
from bertie.tasks.evaluation.calibration import calibration, log_losses
from bertie.tasks.evaluation.findings import Evaluation, member_table
from bertie.tasks.evaluation.passages import Passage, texts_of
from bertie.tasks.example_sums import ExampleSums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.label_sets import (
    DEFAULT_THRESHOLD,
    LabelSetPrediction,
    indicators,
    label_set_sums,
    tuned_thresholds,
)
from bertie.tasks.prediction_files import answer_of
from bertie.tasks.relevance import class_relevance
from bertie.tasks.task import SEQUENCE, TaskDefaults, count_labels, own_pooling, require_distinct

BASELINES = 10  # constant predictions: up to this many of the most frequent labels


@dataclass(frozen=True)
class MultiLabel(TaskDefaults):
    """Predict any number of labels for one text or a pair of texts."""

    facts = HeadFacts(
        "multi-label classification",
        "any number of labels",
        "text-classification",
        "text",
        "multi_label_classification",
    )
    prediction = LabelSetPrediction
    unit = SEQUENCE
    text_pooling = own_pooling
    input_form = encoding.text_input_form
    encode = encoding.encode_texts
    decode = encoding.decode_texts
    head_positions = encoding.pooled_position
    metric = "f1"
    scored_apart = True
    tuned = "thresholds"
    relevance = class_relevance

    kind: Literal["multi_label"] = "multi_label"
    text: text_options.TextColumn = ""
    text_pair: text_options.PairColumn = ""
    label: str = ""
    """Column of the labels; empty: labels or label, or else all columns of 0 and 1, without texts and ids."""
    separator: str = ""
    """Separator of the labels of a cell, such as a comma; none: a cell is one label; empty: detected if the data leave
    no doubt."""
    labels: tuple[str, ...] = ()
    """The labels, which may be columns of 0 and 1; empty: the labels of the training examples, sorted."""
    class_weights: ClassWeights = "none"
    """Weights of the positive examples of each label in the loss. balanced: negative by positive training examples of the
    label. A table: one weight for each label."""
    no_label: text_options.UnknownLabels = ()
    join_labels: text_options.JoinLabels = False
    truncation: text_options.TextTruncation = "head"
    doc_stride: text_options.WindowStride = 0
    pooling: text_options.HeadReads = "model"
    paired: text_options.ArePairs = None
    thresholds: NoFlag[tuple[float, ...]] = ()
    """The lowest probability at which each label is predicted; empty: 0.5. Tuned on dev examples."""
    data_format: NoFlag[DataFormat] = DataFormat()
    """How the training file is read, for other files that are ambiguous."""

    def __post_init__(self) -> None:
        check_ranges("task", self)
        distinct_columns("text", "text_pair", "label")(self)
        require_distinct(self.labels)
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise UsageError(f"task.thresholds has {len(self.thresholds)} numbers for {len(self.labels)} labels")

    @property
    def reader(self) -> Reader:
        texts = LabeledTexts(self.text, self.text_pair, label_names=(), paired=self.paired)
        settings = (self.label, self.separator, self.labels, self.no_label, self.join_labels)
        return Reader(LabelSets(texts, *settings, data_format=self.data_format))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        known = head.shape == "text" and head.problem_type == cls.facts.problem_type
        return cls(labels=head.labels) if known else None

    def as_trained(self, trained: MultiLabel) -> MultiLabel:
        """Return the task with the number of texts of the trained one, and the separator of its examples."""
        return replace(encoding.paired_as_trained(self, trained), data_format=trained.data_format)

    def fit(self, examples: list[LabelSetExample]) -> MultiLabel:
        """Return the task with the labels of the training examples, unless `labels` names them.

        Raises:
            UserError: Labels are missing or unknown, or the same for all examples.
            UsageError: `pooling` needs pairs, or `class_weights` lack a label.
        """
        first = examples[0].labels
        if first is not None and all(each.labels is not None and set(each.labels) == set(first) for each in examples):
            names = join_names(first) or "no label"
            problem = f"every example has the same labels ({examples[0].source} …: {names}): nothing to learn"
            raise UserError(problem, ADD_OTHERS)
        found = {label for example in examples for label in example.labels or ()}
        fitted = replace(self, labels=self.labels or tuple(sorted(found)), paired=encoding.are_pairs(self, examples))
        fitted.validate(examples)
        counts = fitted._indicators(examples).sum(0).tolist()
        return replace(
            fitted, class_weights=fit_weights(self.class_weights, fitted.labels, counts, positives_of=len(examples))
        )

    def validate(self, examples: list[LabelSetExample]) -> None:
        """Check that the labels of every example are known, and among the labels of the task.

        Raises UserError for the first example whose labels are not.
        """
        known = set(self.labels)
        for example in examples:
            if example.labels is None:
                remedy = "name their column with --task.label (an empty list or cell says that there is none)"
                raise UserError(f"{example.source}: its labels are unknown; {remedy}")
            if unknown := [label for label in example.labels if label not in known]:
                raise UserError(f"{example.source}: {none_of(unknown[0], self.labels, 'labels')}")

    def gold(self, examples: list[Any]) -> list[np.ndarray | None]:
        """Return for each example which labels it has, float32 [C]; None if they are unknown."""
        known = set(self.labels)
        rows = indicators([known.intersection(each.labels or ()) for each in examples], self.labels).astype(np.float32)
        return [
            None if each.labels is None or not known.issuperset(each.labels) else row
            for each, row in zip(examples, rows, strict=True)
        ]

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        return PooledHead(width, count_labels(self), head_dropout(config), binary_cross_entropy, config.head_layers)

    def start_with_frequencies(self, head: Any, sequences: list[Sequence]) -> None:
        """Set the output biases of a new head in place, if it has any, from the sequences to train on.

        Where each of many labels is rare, the first steps of training push all logits down. A bias that does so is learned
        slowly, so the encoder does it, for all texts alike, and may stay there: it tells texts apart no more. With the bias that
        gives each label its frequency, nothing is left to push (Lin et al. 2017, section 4.1).
        """
        if head.out.bias is not None:
            with torch.no_grad():
                head.out.bias.copy_(torch.from_numpy(self.initial_bias(sequences)))

    def initial_bias(self, sequences: list[Sequence]) -> np.ndarray:
        """Return the biases of the output layer with the lowest loss on training sequences: float32 [C]."""
        known = [sequence for sequence in sequences if sequence.target is not None]
        has_NC, weight_N = np.stack([sequence.target for sequence in known]) > 0, encoding.example_weights(known)
        odds_C = (weight_N @ has_NC + 0.5) / (weight_N @ ~has_NC + 0.5)
        return np.log(odds_C * weight_array(self.class_weights, self.labels)).astype(np.float32)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        targets = encoding.row_targets(sequences, index, len(self.labels))
        return replace(targets, label=targets.label * weight_array(self.class_weights, self.labels))

    def predicted(self, logits_C: np.ndarray) -> LabelSetPrediction:
        """Return the labels whose probability reaches their threshold."""
        p_C = encoding.sigmoid(logits_C)
        probabilities = dict(zip(self.labels, p_C.tolist(), strict=True))
        limits = self._thresholds()
        labels = [label for (label, p), limit in zip(probabilities.items(), limits, strict=True) if p >= limit]
        return LabelSetPrediction(labels, probabilities)

    def _thresholds(self) -> tuple[float, ...]:
        return self.thresholds or (DEFAULT_THRESHOLD,) * len(self.labels)

    def calibrate(self, predictions: list[LabelSetPrediction], examples: list[LabelSetExample]) -> MultiLabel:
        p_NC = np.array([[prediction.probabilities[label] for label in self.labels] for prediction in predictions])
        return replace(self, thresholds=tuned_thresholds(p_NC, self._indicators(examples)))

    def with_labels_of(self, rows: list[Row], examples: list[LabelSetExample]) -> MultiLabel:
        gold = {label for example in examples for label in example.labels or ()}
        if not (labels := named_labels(rows)):
            predicted = {label for row in rows for label in self._predicted(row.values, row.place)}
            labels = tuple(sorted(gold | {class_of(label, gold) for label in predicted}))
        return replace(self, labels=labels)

    def _predicted(self, values: dict[str, Any], place: str) -> tuple[str, ...]:
        labels = parse_labels(answer_of(values, "labels", place), "labels", place, self.separator, self.labels)
        if labels is None:
            raise UserError(f"{place}: no prediction")
        return tuple(class_of(label, self.labels) for label in labels)

    def read_prediction(self, values: dict[str, Any], example: LabelSetExample, place: str) -> LabelSetPrediction:  # noqa: ARG002
        predicted = self._predicted(values, place)
        if unknown := [label for label in predicted if label not in self.labels]:
            problem = none_of(unknown[0], self.labels, "labels")
            raise UserError(f"{place}: {problem}; name all labels with --task.labels")
        return LabelSetPrediction(list(predicted), {})

    def sums(self, predictions: list[LabelSetPrediction], examples: list[LabelSetExample]) -> dict[str, ExampleSums]:
        self.validate(examples)
        return label_set_sums(
            self._indicators(examples), indicators([prediction.labels for prediction in predictions], self.labels)
        )

    def _indicators(self, examples: list[LabelSetExample]) -> np.ndarray:
        return indicators([example.labels or () for example in examples], self.labels)

    def constant_predictions(self, examples: list[LabelSetExample]) -> list[list[LabelSetPrediction]]:
        """Return these baselines: no label, the most frequent labels, and the most frequent set of labels."""
        counts = Counter(label for example in examples for label in example.labels or ())
        ranked = [label for label, _ in counts.most_common(BASELINES)]
        [(common, _)] = Counter(frozenset(example.labels or ()) for example in examples).most_common(1)
        sets = [*(ranked[:count] for count in range(len(ranked) + 1)), sorted(common)]
        every = [LabelSetPrediction(each, {label: float(label in each) for label in self.labels}) for each in sets]
        return [[prediction] * len(examples) for prediction in every]

    def evaluate(self, predictions: list[LabelSetPrediction], examples: list[LabelSetExample]) -> Evaluation:
        """Return the evaluation: the loss is the sum over the labels of −log of the right answer's probability."""
        self.validate(examples)
        gold = [list(example.labels or ()) for example in examples]
        gold_NC, found_NC = self._indicators(examples), indicators([each.labels for each in predictions], self.labels)
        p_NC = np.array([[each.probabilities[label] for label in self.labels] for each in predictions])

        def passage(i: int) -> Passage:
            p = predictions[i].probabilities
            sides = {"gold": gold[i], "predicted": predictions[i].labels}
            facts = {side: ", ".join(f"{name} {percent(p[name])}" for name in names) for side, names in sides.items()}
            return Passage({side: text or "no label" for side, text in facts.items()}, texts_of(examples[i]))

        losses = log_losses(np.where(gold_NC, p_NC, 1 - p_NC)).sum(1)
        loss = "−log of the probability of each label's gold value, present or absent, summed over the labels, in nats"
        members = np.stack([(gold_NC & found_NC).sum(0), gold_NC.sum(0), found_NC.sum(0)])
        header = ("label", "precision", "recall", "f1", "threshold", "support", "found")
        without = int((~gold_NC.any(1)).sum())
        note = f"A label is predicted if its probability reaches its threshold. {without:,} examples have no label."
        table = member_table("labels", "By label", header, self.labels, members, note, self._thresholds())
        findings = (table, calibration(p_NC.ravel(), gold_NC.ravel(), {}, "decisions"))
        return Evaluation({"gold": gold}, losses, loss, findings, passage)
