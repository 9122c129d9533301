"""A number for one text or a pair, as in STS-B: the pooled [CLS], one added layer of one output, squared error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from tyro.conf import Fixed

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UserError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import PooledHead
from bertie.model.losses import squared_error
from bertie.tasks.data.prediction_files import answer_of, require_number
from bertie.tasks.data.rows import describe_bad_number, parse_label_number
from bertie.tasks.data.texts import SCORES, Example, TextColumns, TextReader
from bertie.tasks.encoding import FIRST, by_example, cls_targets, encode_texts
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.regress import evaluate_numbers
from bertie.tasks.metrics import regression_scores
from bertie.tasks.predictions import NumberPrediction
from bertie.tasks.task import Unit
from bertie.text.tokenizer import Tokenizer
from bertie.text.truncation import Truncation


@dataclass(frozen=True)
class Regress:
    kind: Literal["regress"] = "regress"
    text: str = ""
    """Column of the text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs (empty: found from the header)."""
    label: str = ""
    """Column of the number (empty: found from the header)."""
    truncation: Truncation = "head"
    """What is read of texts that are too long: head, tail, head_tail (a quarter and the rest), or windows of all of it."""
    doc_stride: int = 0
    """Tokens from the start of a window to that of the next; 0: half a window."""
    paired: Fixed[bool | None] = None
    """Whether examples have two texts: found from those of training."""

    def __post_init__(self) -> None:
        require_range("task", self, "doc_stride", low=0)

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def unit(self) -> Unit:
        return "sequence"

    @property
    def metric(self) -> str:
        return "spearman"

    @property
    def reader(self) -> TextReader:
        return TextReader(TextColumns(self.text, self.text_pair, self.label), SCORES, numbers=True, paired=self.paired)

    def fit(self, examples: list[Example]) -> Regress:
        """Errors: UserError for what is no number, or where all are the same."""
        self.validate(examples)
        if len({parse_label_number(example.label) for example in examples}) == 1:
            raise UserError(
                f"every example has the score {examples[0].label} ({examples[0].source} …): nothing to learn"
            )
        return replace(self, paired=examples[0].text_pair is not None)

    def validate(self, examples: list[Example]) -> None:
        """Errors: UserError naming the first example without a number, or with one that is too large."""
        for example in examples:
            if parse_label_number(example.label) is None:
                said = example.label
                have = "no score" if said is None else f"the score {describe_bad_number(said)}"
                raise UserError(f"{example.source}: {have}; name its column with --task.label")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """target: the number, None where there is none."""

        def target(example: Example) -> float | None:
            return parse_label_number(example.label)

        return encode_texts(examples, tokenizer, max_length, self.truncation, self.doc_stride, target, self.paired)

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        return sequences

    def head_positions(self, sequence: Sequence) -> np.ndarray:  # noqa: ARG002
        return FIRST

    def head(self, config: BertConfig, width: int) -> PooledHead:
        return PooledHead(width, 1, config.hidden_dropout_prob, squared_error)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return cls_targets(sequences, index, np.float32)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[NumberPrediction]:
        """Of windows, the mean."""
        return [
            NumberPrediction(float(np.concatenate(rows).mean()))
            for rows in by_example(outputs, sequences, len(examples))
        ]

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> NumberPrediction:  # noqa: ARG002
        return NumberPrediction(require_number(answer_of(values, "score", place), place))

    def score(self, predictions: list[NumberPrediction], examples: list[Example]) -> dict[str, float]:
        """pearson, spearman, mse. Errors: as `check`."""
        self.validate(examples)
        gold = [float(example.label or 0) for example in examples]
        return regression_scores(gold, [prediction.score for prediction in predictions])

    def constant_predictions(self, examples: list[Example]) -> list[list[NumberPrediction]]:
        return [[NumberPrediction(float(np.mean([float(example.label or 0) for example in examples])))] * len(examples)]

    def evaluate(self, predictions: list[NumberPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        return evaluate_numbers(predictions, examples)
