"""Vectors of texts that lie near each other where the texts mean the same (Reimers & Gurevych 2019), trained on pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from tyro.conf import Fixed

from bertie.contracts import Batch, PairTargets, Sequence
from bertie.errors import UserError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import PoolingHead
from bertie.model.pooling import Pooling, pool
from bertie.tasks.data.prediction_files import answer_of, require_number
from bertie.tasks.data.rows import describe_bad_number, parse_label_number, shorten
from bertie.tasks.data.texts import CLASSES, SCORES, Example, TextColumns, TextReader
from bertie.tasks.encoding import FIRST
from bertie.tasks.evaluation.embed import evaluate_retrieval, evaluate_scored_pairs, partner_ranks
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.metrics import regression_scores
from bertie.tasks.predictions import SimilarityPrediction
from bertie.tasks.task import Unit
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Embed:
    """Pairs with a score are drawn to cosines in proportion to it; pairs without one are told from all others of their batch."""

    kind: Literal["embed"] = "embed"
    text: str = ""
    """Column of the first text (empty: found from the header)."""
    text_pair: str = ""
    """Column of the second text (empty: found from the header)."""
    label: str = ""
    """Column of the score, if there is one (empty: found from the header)."""
    pooling: Pooling = "mean"
    """What a text's vector is of its tokens'."""
    scale: float = 20.0
    """What cosines are multiplied with where pairs have no scores: 1 / temperature."""
    scored: Fixed[bool] = False
    """Found from the training examples."""
    lowest: Fixed[float] = 0.0
    """The score of a cosine of 0, found from the training examples."""
    highest: Fixed[float] = 1.0
    """The score of a cosine of 1, found from the training examples."""

    def __post_init__(self) -> None:
        require_range("task", self, "scale", low=0, above=True)

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def unit(self) -> Unit:
        return "example" if self.scored else "batch"

    @property
    def metric(self) -> str:
        return "spearman" if self.scored else "accuracy"

    @property
    def reader(self) -> TextReader:
        labels = tuple(dict.fromkeys((*SCORES, *CLASSES)))
        return TextReader(TextColumns(self.text, self.text_pair, self.label), labels, numbers=None, paired=True)

    def fit(self, examples: list[Example]) -> Embed:
        """Errors: UserError where a second text is missing, or some scores are; where pairs are of several classes."""
        known = _scores(examples)
        if not known:
            return replace(self, scored=False)
        if min(known) == max(known):
            raise UserError(f"every pair has the score {known[0]:g} ({examples[0].source} …): nothing to learn")
        return replace(self, scored=True, lowest=min(known), highest=max(known))

    def validate(self, examples: list[Example]) -> None:
        """Errors: UserError as `fit`; where no pair has a score, and those of training have."""
        if not _scores(examples) and self.scored:
            raise UserError(f"{examples[0].source}: no score, where the pairs of training have one")

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Two sequences a pair; target: the cosine that is wanted, None without scores."""
        _require_pairs(examples)
        sides = [
            truncation.tokenize(tokenizer, [example.text for example in examples]),
            truncation.tokenize(tokenizer, [example.text_pair or "" for example in examples]),
        ]
        width = self.highest - self.lowest
        sequences = []
        for number, (example, *each) in enumerate(zip(examples, *sides, strict=True)):
            score = parse_label_number(example.label)
            target = None if score is None or not width else (score - self.lowest) / width
            for part, pieces in enumerate(each):
                [sequence] = truncation.to_sequences(tokenizer, [pieces], max_length)
                sequences.append(replace(sequence, example=number, part=part, target=target))
        return sequences

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        return sequences

    def head_positions(self, sequence: Sequence) -> np.ndarray:
        return FIRST if self.pooling == "cls" else np.arange(len(sequence))

    def head(self, config: BertConfig, width: int) -> PoolingHead:  # noqa: ARG002
        return PoolingHead(self.pooling, self.scale)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> PairTargets:  # noqa: ARG002
        text = np.repeat(np.arange(len(sequences)), [len(self.head_positions(sequence)) for sequence in sequences])
        first, second = (np.array([i for i, s in enumerate(sequences) if s.part == part]) for part in (0, 1))
        score = np.array([sequences[i].target or 0.0 for i in first], np.float32)
        return PairTargets(index, text, np.ones(len(first), np.float32), first, second, score, self.scored)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[SimilarityPrediction]:
        vectors = [[np.zeros(0, np.float32)] * 2 for _ in examples]
        for rows, sequence in zip(outputs, sequences, strict=True):
            one_text = torch.zeros(len(rows), dtype=torch.long)
            vector = F.normalize(pool(self.pooling, torch.from_numpy(rows), one_text, 1))[0].numpy()
            vectors[sequence.example][sequence.part] = vector
        return [SimilarityPrediction(float(first @ second), (first, second)) for first, second in vectors]

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> SimilarityPrediction:
        if parse_label_number(example.label) is None:
            raise UserError(f"{example.source}: pairs without scores are scored by vectors, which no prediction has")
        none = np.zeros(0, np.float32)
        return SimilarityPrediction(require_number(answer_of(values, "similarity", place), place), (none, none))

    def score(self, predictions: list[SimilarityPrediction], examples: list[Example]) -> dict[str, float]:
        """spearman and pearson of cosines and scores; without scores accuracy: whose own second text is nearest of all."""
        self.validate(examples)
        if parse_label_number(examples[0].label) is not None:
            gold = [float(example.label or 0) for example in examples]
            scores = regression_scores(gold, [prediction.similarity for prediction in predictions])
            return {name: scores[name] for name in ("spearman", "pearson")}
        first, second = (np.stack([prediction.vectors[side] for prediction in predictions]) for side in (0, 1))
        return {"accuracy": float((partner_ranks(first, second)[0] == 1).mean())}

    def evaluate(self, predictions: list[SimilarityPrediction], examples: list[Example]) -> Evaluation:
        self.validate(examples)
        scores = [parse_label_number(example.label) for example in examples]
        known = [score for score in scores if score is not None]
        return (
            evaluate_scored_pairs(known, predictions, examples) if known else evaluate_retrieval(predictions, examples)
        )

    def constant_predictions(self, examples: list[Example]) -> list[list[SimilarityPrediction]]:
        same = np.ones(1, np.float32)
        return [[SimilarityPrediction(1.0, (same, same)) for _ in examples]]


def _scores(examples: list[Example]) -> list[float]:
    """Of every pair, or none. Pairs of one class are taken for such as belong together."""
    _require_pairs(examples)
    scores = [parse_label_number(example.label) for example in examples]
    known = [score for score in scores if score is not None]
    if not known and len({example.label for example in examples}) > 1:
        raise UserError(
            f"{examples[0].source}: the label {shorten(str(examples[0].label))!r} is no score, and others differ: embed learns "
            "from scores, or from pairs that all belong together; leave the others out"
        )
    if 0 < len(known) < len(scores):
        bad = examples[scores.index(None)]
        have = "no score" if bad.label is None else f"the score {describe_bad_number(bad.label)}"
        raise UserError(f"{bad.source}: {have}, where others have one")
    return known


def _require_pairs(examples: list[Example]) -> None:
    for example in examples:
        if example.text_pair is None:
            raise UserError(
                f"{example.source}: one text, where a pair is needed; name its column with --task.text-pair"
            )
