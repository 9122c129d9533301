"""Classification of one text or a pair: BERT's pooled [CLS] and one added layer (Devlin et al. 2018, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.tasks.examples import Columns, Example
from bertie.tasks.metrics import classification_scores
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prediction:
    """label: the most probable; probabilities: of every label, in the order of the labels."""

    label: str
    probabilities: dict[str, float]


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

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise UsageError(f"task.labels names a class twice: {', '.join(self.labels)}")

    @property
    def columns(self) -> Columns:
        return Columns(self.text, self.text_pair, self.label)

    def fit(self, examples: list[Example]) -> Classify:
        """The task with the classes of the training examples. Errors: UserError for a missing label or a single class."""
        for example in examples:
            if example.label is None:
                none = all(other.label is None for other in examples)
                remedy = "name its column with --task.label" if none else "others have one: give it one, or take it out"
                raise UserError(f"{example.source}: no label to train on; {remedy}")
        if len(self.labels) == 1:
            raise UsageError(
                f"task.labels names one class, {self.labels[0]!r}: name all, or leave it out to have them found"
            )
        labels: tuple[str, ...] = self.labels or tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            raise UserError(f"every example has the label {min(labels)!r} ({examples[0].source} …): nothing to learn")
        fitted = replace(self, labels=labels)
        fitted.check(examples)
        return fitted

    def check(self, examples: list[Example]) -> None:
        """Errors: UserError naming the first example without a label, or with one that training never saw."""
        known = set(self.labels)
        for example in examples:
            if example.label not in known:
                have = "no label" if example.label is None else f"the label {example.label!r}, which training never saw"
                classes = ", ".join(label if len(label) < 30 else f"{label[:30]}…" for label in self.labels[:20])
                raise UserError(f"{example.source}: {have}; the classes are {classes}")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """One sequence an example; target: the label's number, -1 where there is none. Errors: UserError."""
        pairs = [example.text_pair for example in examples if example.text_pair is not None]
        if pairs and len(pairs) != len(examples):
            alone = next(example for example in examples if example.text_pair is None)
            raise UserError(f"{alone.source}: one text, where others have two")
        sequences = tokenizer.sequences([e.text for e in examples], pairs or None, max_length=max_length)
        number = {label: i for i, label in enumerate(self.labels)}
        return [
            replace(sequence, example=i, target=number.get(str(example.label), -1))
            for i, (sequence, example) in enumerate(zip(sequences, examples, strict=True))
        ]

    def head(self, config: BertConfig) -> PooledHead:
        if not self.labels:
            raise UsageError("the task has no classes yet: fit it on training examples, or give task.labels")
        return PooledHead(config, len(self.labels), config.hidden_dropout_prob)

    def targets(self, batch: Batch, sequences: list[Sequence]) -> Targets:
        """One a sequence, at its [CLS]."""
        labels = np.array([sequence.target for sequence in sequences], np.int64)
        return Targets(batch.ragged.cu_seqlens[:-1], labels, np.ones(len(labels), np.float32))

    def decode(self, logits_C: np.ndarray) -> Prediction:
        """From the logits of one sequence, float [classes]."""
        exponentials = np.exp(logits_C.astype(np.float64) - logits_C.max())
        probabilities = exponentials / exponentials.sum()
        named = {label: float(p) for label, p in zip(self.labels, probabilities, strict=True)}
        return Prediction(self.labels[int(logits_C.argmax())], named)

    def score(self, predictions: list[Prediction], examples: list[Example]) -> dict[str, float]:
        """accuracy, f1, matthews. Errors: UserError for an example without a known label."""
        self.check(examples)
        gold = [str(example.label) for example in examples]
        return classification_scores(gold, [prediction.label for prediction in predictions], list(self.labels))
