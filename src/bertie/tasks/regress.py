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
from bertie.tasks.assessment.findings import Assessment
from bertie.tasks.assessment.regress import assess_numbers
from bertie.tasks.contract import Unit
from bertie.tasks.data.predictions import answer_of, require_number
from bertie.tasks.data.rows import no_number, number_of
from bertie.tasks.data.texts import SCORES, Columns, Example, Texts
from bertie.tasks.encoding import FIRST, by_example, encode_texts, whole_texts
from bertie.tasks.metrics import regression_scores
from bertie.text.framing import Long
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Score:
    score: float


@dataclass(frozen=True)
class Regress:
    kind: Literal["regress"] = "regress"
    text: str = ""
    """Column of the text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text, for tasks on pairs (empty: found from the header)."""
    label: str = ""
    """Column of the number (empty: found from the header)."""
    long: Long = "head"
    """What is read of texts that are too long: head, tail, head_tail (a quarter and the rest), or windows of all of it."""
    step: int = 0
    """Tokens from the start of a window to that of the next; 0: half a window."""
    paired: Fixed[bool | None] = None
    """Whether examples have two texts: found from those of training."""

    def __post_init__(self) -> None:
        require_range("task", self, "step", low=0)

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
    def reader(self) -> Texts:
        return Texts(Columns(self.text, self.text_pair, self.label), SCORES, numbers=True, paired=self.paired)

    def fit(self, examples: list[Example]) -> Regress:
        """Errors: UserError for what is no number, or where all are the same."""
        self.check(examples)
        if len({number_of(example.label) for example in examples}) == 1:
            raise UserError(
                f"every example has the score {examples[0].label} ({examples[0].source} …): nothing to learn"
            )
        return replace(self, paired=examples[0].text_pair is not None)

    def check(self, examples: list[Example]) -> None:
        """Errors: UserError naming the first example without a number, or with one that is too large."""
        for example in examples:
            if number_of(example.label) is None:
                said = example.label
                have = "no score" if said is None else f"the score {no_number(said)}"
                raise UserError(f"{example.source}: {have}; name its column with --task.label")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """target: the number, None where there is none."""

        def target(example: Example) -> float | None:
            return number_of(example.label)

        return encode_texts(examples, tokenizer, max_length, self.long, self.step, target, self.paired)

    def training(self, sequences: list[Sequence]) -> list[Sequence]:
        return sequences

    def reads(self, sequence: Sequence) -> np.ndarray:  # noqa: ARG002
        return FIRST

    def head(self, config: BertConfig, width: int) -> PooledHead:
        return PooledHead(width, 1, config.hidden_dropout_prob, squared_error)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:  # noqa: ARG002
        return whole_texts(sequences, index, np.float32)

    def decode(self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]) -> list[Score]:
        """Of windows, the mean."""
        return [Score(float(np.concatenate(rows).mean())) for rows in by_example(outputs, sequences, len(examples))]

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> Score:  # noqa: ARG002
        return Score(require_number(answer_of(values, "score", place), place))

    def score(self, predictions: list[Score], examples: list[Example]) -> dict[str, float]:
        """pearson, spearman, mse. Errors: as `check`."""
        self.check(examples)
        gold = [float(example.label or 0) for example in examples]
        return regression_scores(gold, [prediction.score for prediction in predictions])

    def constants(self, examples: list[Example]) -> list[list[Score]]:
        return [[Score(float(np.mean([float(example.label or 0) for example in examples])))] * len(examples)]

    def assess(self, predictions: list[Score], examples: list[Example]) -> Assessment:
        self.check(examples)
        return assess_numbers(predictions, examples)
