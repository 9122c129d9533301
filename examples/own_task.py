"""A task of your own: ordinal regression, for classes that have an order, such as reviews with 1 to 5 stars.

A classifier does not know that 4 stars are nearer to 5 than to 1. Here, one score is compared with a threshold between each two
neighboring classes (McCullagh 1980; for networks Cao, Mirjalili and Raschka 2020), so an error of three stars costs more than
an error of one.

    python examples/own_task.py                          # a trial of half a minute, on reviews and a model that it makes
    bertie finetune own_task:Ordinal --train train.csv --model MODEL --out runs/stars    # in the folder examples

K classes, S sequences, D hidden size
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import bertie
from bertie.base.contracts import Batch, Hidden, Loss, Sequence, Targets
from bertie.base.errors import UsageError
from bertie.examples.reader import Reader
from bertie.examples.rows import Row, parse_finite
from bertie.examples.texts import Example, LabeledTexts
from bertie.model.dropout import drop
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.losses.losses import binary_cross_entropy
from bertie.tasks import classes, encoding, text_options
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.passages import texts_of
from bertie.tasks.example_sums import ExampleSums, class_sums, mean_sums
from bertie.tasks.predictions import ClassPrediction
from bertie.tasks.task import SEQUENCE, TaskDefaults, own_pooling


class OrderedHead(nn.Module):
    """A score for each sequence, and K − 1 thresholds. The logits are those of "above class 1", "above class 2", …"""

    def __init__(self, width: int, classes: int, dropout: float):
        super().__init__()
        self.dropout = dropout
        self.score = nn.Linear(width, 1, bias=False)
        self.above = nn.Parameter(torch.zeros(classes - 1))

    def logits(self, first_SD: Tensor) -> Tensor:
        return self.score(drop(first_SD, self.dropout, self.training)) + self.above

    def forward(self, hidden: Hidden, targets: Targets) -> Loss:
        return binary_cross_entropy(self.logits(hidden.last[targets.index]), targets)


@dataclass(frozen=True)
class Ordinal(TaskDefaults):
    """Predict one of several classes that are numbers, such as stars, for a text or a pair of texts."""

    facts = HeadFacts("ordinal regression", "one of several classes in order", "text-classification")
    prediction = ClassPrediction
    unit = SEQUENCE
    metric = "mean_error"
    text_pooling = own_pooling
    input_form = encoding.text_input_form
    encode = encoding.encode_texts
    decode = encoding.decode_texts
    head_positions = encoding.pooled_position
    as_trained = encoding.paired_as_trained
    constant_predictions = classes.constant_classes

    kind: Literal["ordinal"] = "ordinal"
    text: text_options.TextColumn = ""
    text_pair: text_options.PairColumn = ""
    label: str = ""
    """Column of the class, a number; empty: detected from the header."""
    labels: tuple[str, ...] = ()
    """The classes, from low to high; empty: the numbers of the training examples."""
    truncation: text_options.TextTruncation = "head"
    doc_stride: text_options.WindowStride = 0
    pooling: text_options.HeadReads = "model"
    paired: text_options.ArePairs = None

    @property
    def reader(self) -> Reader:
        return Reader(LabeledTexts(self.text, self.text_pair, self.label, paired=self.paired, classes=self.labels))

    def fit(self, examples: list[Example]) -> Ordinal:
        """Return the task with the classes of the training examples, in the order of their numbers."""
        labels = in_order(classes.classes_of(self.labels, examples))
        fitted = replace(self, labels=labels, paired=encoding.are_pairs(self, examples))
        fitted.validate(examples)
        return fitted

    def validate(self, examples: list[Example]) -> None:
        classes.require_classes(self.labels, examples)

    def head(self, config: EncoderConfig, width: int) -> OrderedHead:
        return OrderedHead(width, len(self.labels), head_dropout(config))

    def start_with_frequencies(self, head: OrderedHead, sequences: list[Sequence]) -> None:
        """Start with the thresholds that a constant score would learn."""
        above = np.sum([sequence.target for sequence in sequences], 0)
        head.above.data.copy_(torch.logit(torch.from_numpy((above + 0.5) / (len(sequences) + 1))))

    def gold(self, examples: list[Example]) -> list[np.ndarray | None]:
        """Return for each example whether its class is above each class but the last, int64 [K − 1]; None without a class."""
        rows = {label: np.arange(len(self.labels) - 1) < number for number, label in enumerate(self.labels)}
        found = [rows.get(str(example.label)) for example in examples]
        return [None if row is None else row.astype(np.int64) for row in found]

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        unknown = np.zeros(len(self.labels) - 1, np.int64)  # weighs nothing
        rows = [unknown if sequence.target is None else sequence.target for sequence in sequences]
        return Targets(index, np.stack(rows), encoding.example_weights(sequences))

    def predicted(self, logits_K: np.ndarray) -> ClassPrediction:
        """Return the class in the middle of the distribution, from the K − 1 logits."""
        above = np.minimum.accumulate(encoding.sigmoid(logits_K))
        shares = -np.diff(above, prepend=1.0, append=0.0)
        probabilities = dict(zip(self.labels, shares.tolist(), strict=True))
        return ClassPrediction(self.labels[int((above > 0.5).sum())], probabilities)

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> ClassPrediction:  # noqa: ARG002
        return classes.read_class(self.labels, values, place)

    def with_labels_of(self, rows: list[Row], examples: list[Example]) -> Ordinal:
        return replace(self, labels=in_order(classes.labels_in(rows, examples)))

    def sums(self, predictions: list[ClassPrediction], examples: list[Example]) -> dict[str, ExampleSums]:
        """Return the rows of accuracy, of the share that is wrong by one class at most, and of the mean error in classes."""
        self.validate(examples)
        gold, predicted = classes.gold_and_predicted(predictions, examples)
        places = [np.array([self.labels.index(label) for label in side]) for side in (gold, predicted)]
        errors = np.abs(places[1] - places[0])
        accuracy = class_sums(gold, predicted, self.labels)["accuracy"]
        return {"accuracy": accuracy, "within_one": mean_sums(errors <= 1), "mean_error": mean_sums(errors)}

    def evaluate(self, predictions: list[ClassPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        return classes.evaluate_classes(self.labels, predictions, examples, lambda i: texts_of(examples[i]))


def in_order(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return classes from low to high. Raises UsageError if one is not a number."""
    if strange := [label for label in labels if parse_finite(label) is None]:
        raise UsageError(f"the class {strange[0]!r} is not a number: use the task classify")
    return tuple(sorted(labels, key=float))


# What follows is the trial.

GRADES = {"1": "awful dreadful terrible", "2": "bad poor dull", "3": "average fair plain", "4": "good nice pleasant"}
GRADES |= {"5": "superb excellent wonderful"}
THINGS = ["film", "hotel", "meal", "phone", "song", "chair", "book", "lamp"]


def reviews(count: int, rng: random.Random) -> list[dict[str, str]]:
    """Return reviews of two opinions, which differ by one star at most. The lower one decides."""
    rows = []
    for _ in range(count):
        low = rng.randint(1, 5)
        first, second = (rng.choice(GRADES[str(stars)].split()) for stars in (low, min(5, low + rng.randint(0, 1))))
        rows.append(
            {"text": f"The {rng.choice(THINGS)} was {first}, the {rng.choice(THINGS)} {second}.", "label": str(low)}
        )
    return rows


def main() -> None:
    """Make reviews, pre-train a small model on them, fine-tune it, and rate three more reviews."""
    rows = reviews(1200, random.Random(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "reviews.txt").write_text("\n\n".join(row["text"] for row in rows[:800]))
        tokenizer = bertie.train_tokenizer(folder / "reviews.txt", folder / "tokenizer", vocab_size=150)
        bertie.prepare(folder / "reviews.txt", tokenizer, folder / "shards", eval_share=0.05)
        training = {"steps": 100, "batch_size": 8, "row_tokens": 512}
        recipe = {"extends": "modern-tiny", "layout": {"max_length": 32}, "training": training}
        bertie.pretrain(recipe, folder / "shards", folder / "model")
        recipe = {
            "extends": "classify",
            "max_length": 32,
            "task": Ordinal(),
            "training": {"epochs": 6, "learning_rate": 3e-3},
        }
        tuned = bertie.finetune(recipe, rows, folder / "model")
        texts = [row["text"] for row in reviews(3, random.Random(5))]
        for text, prediction in zip(texts, tuned.predict(texts), strict=True):
            print(f"{prediction.label} stars: {text}")
        print(tuned.scores)


if __name__ == "__main__":
    main()
