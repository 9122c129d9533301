"""Classification of one text or a pair: BERT's pooled [CLS] and one added layer (Devlin et al. 2018, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tyro.conf import Fixed

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.tasks.data.prediction_files import answer_of
from bertie.tasks.data.rows import join_names, label, shorten
from bertie.tasks.data.texts import CLASSES, Example, TextColumns, TextReader
from bertie.tasks.encoding import FIRST, by_example, cls_targets, encode_texts, softmax
from bertie.tasks.evaluation.classify import evaluate_classes
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.metrics import classification_scores
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.task import Unit
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import Truncation


@dataclass(frozen=True)
class Classify:
    kind: Literal["classify"] = "classify"
    text: str = ""
    """Column of the text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs (empty: found from the header)."""
    label: str = ""
    """Column of the label (empty: found from the header)."""
    labels: tuple[str, ...] = ()
    """The classes; empty: those of the training examples, sorted."""
    truncation: Truncation = "head"
    """What is read of texts that are too long: head, tail, head_tail (a quarter and the rest), or windows of all of it."""
    doc_stride: int = 0
    """Tokens from the start of a window to that of the next; 0: half a window."""
    paired: Fixed[bool | None] = None
    """Whether examples have two texts: found from those of training."""

    def __post_init__(self) -> None:
        require_range("task", self, "doc_stride", low=0)
        if len(set(self.labels)) < len(self.labels):
            raise UsageError(f"task.labels names a class twice: {join_names(self.labels)}")

    @property
    def unit(self) -> Unit:
        return "sequence"

    @property
    def metric(self) -> str:
        return "accuracy"

    @property
    def reader(self) -> TextReader:
        return TextReader(TextColumns(self.text, self.text_pair, self.label), CLASSES, paired=self.paired)

    def fit(self, examples: list[Example]) -> Classify:
        """The task with the classes of the training examples. Errors: UserError for a missing label or a single class."""
        for example in examples:
            if example.label is None:
                none = all(other.label is None for other in examples)
                remedy = "name its column with --task.label" if none else "others have one: give it one, or take it out"
                raise UserError(f"{example.source}: no label to train on; {remedy}")
        if len(self.labels) == 1:
            raise UsageError(
                f"task.labels names one class, {shorten(self.labels[0])!r}: name all, or leave it out to have them found"
            )
        labels: tuple[str, ...] = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            raise UserError(
                f"every example has the label {shorten(min(labels))!r} ({examples[0].source} …): nothing to learn"
            )
        fitted = replace(self, labels=labels, paired=examples[0].text_pair is not None)
        fitted.validate(examples)
        return fitted

    def validate(self, examples: list[Example]) -> None:
        """Errors: UserError naming the first example without a label, or with one that is none of the classes."""
        known = set(self.labels)
        for example in examples:
            if example.label not in known:
                said = example.label
                have = "no label" if said is None else f"the label {shorten(said)!r} is none of the classes"
                raise UserError(f"{example.source}: {have}; the classes are {join_names(self.labels)}")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """target: the label's number, None where there is none."""
        number = {label: i for i, label in enumerate(self.labels)}

        def target(example: Example) -> int | None:
            return number.get(str(example.label))

        return encode_texts(examples, tokenizer, max_length, self.truncation, self.doc_stride, target, self.paired)

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        return sequences

    def head_positions(self, sequence: Sequence) -> np.ndarray:  # noqa: ARG002
        return FIRST

    def head(self, config: BertConfig, width: int) -> PooledHead:
        if not self.labels:
            raise UsageError("the task has no classes yet: fit it on training examples, or give task.labels")
        return PooledHead(width, len(self.labels), config.hidden_dropout_prob)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return cls_targets(sequences, index, np.int64)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[ClassPrediction]:
        """Of windows, from the mean of their logits."""
        return [self._decode(np.concatenate(rows).mean(0)) for rows in by_example(outputs, sequences, len(examples))]

    def _decode(self, logits_C: np.ndarray) -> ClassPrediction:
        named = {label: float(p) for label, p in zip(self.labels, softmax(logits_C), strict=True)}
        return ClassPrediction(self.labels[int(logits_C.argmax())], named)

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> ClassPrediction:  # noqa: ARG002
        said = label(answer_of(values, "label", place), "label", place)
        if said not in self.labels:
            raise UserError(
                f"{place}: {shorten(str(said))!r} is none of the classes, which are {join_names(self.labels)}; "
                "name them all with --task.labels"
            )
        return ClassPrediction(said, {})

    def score(self, predictions: list[ClassPrediction], examples: list[Example]) -> dict[str, float]:
        """accuracy, f1, matthews. Errors: UserError for an example without a known label."""
        self.validate(examples)
        gold = [str(example.label) for example in examples]
        return classification_scores(gold, [prediction.label for prediction in predictions], list(self.labels))

    def constant_predictions(self, examples: list[Example]) -> list[list[ClassPrediction]]:
        each = [ClassPrediction(label, {name: float(name == label) for name in self.labels}) for label in self.labels]
        return [[one] * len(examples) for one in each]

    def evaluate(self, predictions: list[ClassPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        return evaluate_classes(self.labels, predictions, examples)
