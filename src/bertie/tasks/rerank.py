"""Reranking: score how relevant a text is for a query, which are read together (a cross-encoder; Nogueira & Cho 2019)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from bertie.base.config import NoFlag, ranges
from bertie.base.contracts import RankTargets, Sequence
from bertie.base.errors import UsageError, UserError
from bertie.base.report import TextSpan
from bertie.examples.queries.tuples import tuple_reader
from bertie.examples.rows import parse_label_number
from bertie.examples.texts import Example
from bertie.model.encoder import EncoderConfig, head_dropout
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PooledHead
from bertie.model.heads.text_pooling import pooling_facts
from bertie.model.losses.ranking import RankingLoss, ranking_loss
from bertie.tasks import text_options
from bertie.tasks.encoding import by_example, no_relevance, pooled_position, queries
from bertie.tasks.evaluation.findings import Evaluation, Histogram
from bertie.tasks.evaluation.passages import Passage, shortened
from bertie.tasks.evaluation.ranks import evaluate_ranks
from bertie.tasks.example_sums import ExampleSums, mean_sums, number_sums
from bertie.tasks.prediction_files import answer_of, require_number
from bertie.tasks.predictions import RelevancePrediction, rounded
from bertie.tasks.task import EXAMPLE, TaskDefaults, own_pooling
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rerank(TaskDefaults):
    """Score how relevant a text is for a query.

    Trained on queries with a positive and negatives (`bertie mine` finds some), or on pairs with scores.
    """

    base_learning_rate = 2e-5
    base_epochs = 1
    shows_example = True
    facts = HeadFacts("reranking", "how relevant a text is for a query", "text-classification", "text", "regression")
    prediction = RelevancePrediction
    labels = ()
    paired = True
    unit = EXAMPLE
    text_pooling = own_pooling
    input_form = "a list of two texts"
    reader = tuple_reader
    head_positions = pooled_position
    together = queries

    kind: Literal["rerank"] = "rerank"
    text: str = ""
    """Column of the query; empty: detected from the header."""
    text_pair: str = ""
    """Column of the text, which is relevant unless a score says otherwise; empty: detected from the header."""
    negatives: tuple[str, ...] = ()
    """Columns of texts that are not relevant; empty: detected from the header, such as negative or neg."""
    label: str = ""
    """Column of the score, or of a list of scores: of the text, and of each negative; empty: detected from the header."""
    no_label: text_options.UnknownLabels = ()
    truncation: Literal["head", "tail", "head_tail"] = "head"
    """Part to read of a text that is too long, as for classify."""
    pooling: text_options.HeadReads = "model"
    loss: RankingLoss | None = None
    """Loss. By default margin_mse with a teacher's scores of texts and negatives, mse with scores of pairs outside of 0 to 1,
    otherwise bce."""
    scored: NoFlag[bool] = False
    """Whether examples are pairs with a score each; set from the training examples."""

    __post_init__ = ranges("task")

    @property
    def metric(self) -> str:
        return "spearman" if self.scored else "mrr"

    def as_trained(self, trained: Rerank) -> Rerank:
        return replace(self, scored=trained.scored, loss=trained.loss)

    def fit(self, examples: list[Example]) -> Rerank:
        """Return the task with the loss that fits the examples.

        Raises:
            UserError: An example has neither a negative nor a score, or examples differ in that.
            UsageError: The loss does not fit the examples.
        """
        self.validate(examples)
        scored, taught = not examples[0].negatives, any(example.scores for example in examples)
        task = replace(self, scored=scored)
        scores = [score for example in examples for score in _scores(example)]
        shares = all(0 <= score <= 1 for score in scores)
        loss = self.loss or ("margin_mse" if taught else "bce" if shares else "mse")
        if loss in ("softmax", "lambda", "margin_mse") and scored:
            raise UsageError(
                f"task.loss {loss} compares a text with negatives of the same query: bertie mine finds some"
            )
        if (loss == "bce" and not shares) or (loss == "softmax" and min(scores) < 0):
            raise UsageError(
                f"task.loss {loss} needs scores from 0{' to 1' * (loss == 'bce')}: these go to {max(scores):g}"
            )
        if self.pooling == "both_orders":
            raise UsageError("task.pooling both_orders reads a pair twice: choose another one for rerank")
        if loss == "softmax" and (none := [each for each in examples if not any(_scores(each))]):
            raise UserError(f"{none[0].source}: every text has the score 0, so no text should be first")
        if len(set(scores)) == 1:
            raise UserError(f"every text has the score {scores[0]:g} ({examples[0].source} …): nothing to learn")
        return replace(task, loss=loss)

    def validate(self, examples: list[Example]) -> None:
        """Check that all examples have negatives, or all a score. Raises UserError."""
        for example in examples:
            if example.text_pair is None:
                raise UserError(
                    f"{example.source}: found one text, expected a query and a text: name it with --task.text-pair"
                )
            if not example.negatives and parse_label_number(example.label) is None:
                raise UserError(f"{example.source}: no negative and no score: bertie mine finds negatives")
            if bool(example.negatives) != bool(examples[0].negatives):
                raise UserError(
                    f"{example.source}: only some examples have negatives; the first is {examples[0].source}"
                )

    def encode(self, examples: list[Example], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode a sequence for each text of an example: part 0 is its text, the others are its negatives. The target is the
        score; None without one, or for a negative that is right for the query in another example."""
        right = {(example.text, example.text_pair) for example in examples if example.label is None}
        queries = truncation.tokenize(tokenizer, [example.text for example in examples])
        texts = [(example.text_pair or "", *example.negatives) for example in examples]
        pieces = iter(truncation.tokenize(tokenizer, [text for of in texts for text in of]))
        sequences, separate = [], pooling_facts(self.pooling).separate
        for number, (example, query, of) in enumerate(zip(examples, queries, texts, strict=True)):
            scores = _scores(example) if example.negatives or example.label is not None else [None]
            for part in range(len(of)):
                pair = [query, next(pieces)]
                [sequence] = truncation.to_sequences(tokenizer, pair, max_length, self.truncation, separate=separate)
                known = part > 0 and not example.scores and (example.text, of[part]) in right
                target = None if known else scores[part]
                sequences.append(replace(sequence, example=number, part=part, target=target))
        return sequences

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return the sequences without negatives that are right in another example."""
        return [sequence for sequence in sequences if sequence.target is not None or not sequence.part]

    def head(self, config: EncoderConfig, width: int) -> PooledHead:
        loss: Any = partial(ranking_loss, self.loss or "bce")
        return PooledHead(width, 1, head_dropout(config), loss, config.head_layers)

    def targets(self, batch: Any, sequences: list[Sequence], index: np.ndarray) -> RankTargets:  # noqa: ARG002
        places = dict[int, int]()  # ascending, though the examples are shuffled
        group = np.array([places.setdefault(sequence.example, len(places)) for sequence in sequences], np.int64)
        sizes = np.bincount(group)
        known = np.array([sequence.target is not None for sequence in sequences])
        score = np.array([sequence.target or 0.0 for sequence in sequences], np.float32)
        return RankTargets(index, group, (known / sizes[group]).astype(np.float32), score)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Example]
    ) -> list[RelevancePrediction]:
        scores = [
            rounded(np.concatenate(rows)[:, 0].tolist()) for rows in by_example(outputs, sequences, len(examples))
        ]
        return [RelevancePrediction(own, tuple(others)) for own, *others in scores]

    def relevance(self, label: str) -> Callable[[Any], float] | None:
        no_relevance(self, label)
        return lambda prediction: prediction.score

    def read_prediction(self, values: dict[str, Any], example: Example, place: str) -> RelevancePrediction:
        if parse_label_number(example.label) is None:
            raise UserError(
                f"{example.source}: no score; ranks need the scores of negatives, which prediction files lack"
            )
        return RelevancePrediction(require_number(answer_of(values, "score", place), place))

    def sums(self, predictions: list[RelevancePrediction], examples: list[Example]) -> dict[str, ExampleSums]:
        """Return the rows of mrr, the mean of 1 / rank of the text among its negatives, and accuracy, the share of first ranks;
        or of pearson and spearman."""
        self.validate(examples)
        if not examples[0].negatives:
            sums = number_sums([_scores(example)[0] for example in examples], [each.score for each in predictions])
            return {name: sums[name] for name in ("spearman", "pearson")}
        ranks = _ranks(predictions)
        return {"mrr": mean_sums(1 / ranks), "accuracy": mean_sums(ranks == 1)}

    def constant_predictions(self, examples: list[Example]) -> list[list[RelevancePrediction]]:
        """Return one baseline: the same score for every text."""
        return [[RelevancePrediction(0.0, (0.0,) * len(example.negatives)) for example in examples]]

    def evaluate(self, predictions: list[RelevancePrediction], examples: list[Example]) -> Evaluation:
        """Return the evaluation: the loss is the number of negatives above the text, or as of `evaluate_ranks`."""
        self.validate(examples)
        if not examples[0].negatives:
            gold = [_scores(example)[0] for example in examples]
            return evaluate_ranks(gold, [each.score for each in predictions], "prediction", examples)
        ranks = _ranks(predictions)
        bars = {f"{rank:,}": int((ranks == rank).sum()) for rank in range(1, int(ranks.max()) + 1)}

        def passage(i: int) -> Passage:
            scored = [(predictions[i].score, examples[i].text_pair or "", True)]
            scored += [(*pair, False) for pair in zip(predictions[i].negatives, examples[i].negatives, strict=True)]
            texts = [
                shortened([TextSpan(text, "gold" if own else "wrong", f"{score:.3f}")])
                for score, text, own in sorted(scored, key=lambda item: -item[0])[:4]
            ]
            return Passage({"source": examples[i].source}, [shortened([TextSpan(examples[i].text)]), *texts])

        caption = "number of examples, by the rank of the text among its negatives"
        findings = (Histogram("ranks", "Ranks", bars, "rank", caption),)
        loss = "number of negatives that are scored as high or higher"
        return Evaluation({"rank": ranks.tolist()}, ranks - 1, loss, findings, passage)


def _scores(example: Example) -> list[float]:
    """Return the gold scores of the text of an example, and of its negatives: 1 and 0 unless the data says otherwise."""
    if example.scores:
        return list(example.scores)
    score = parse_label_number(example.label)
    return [1.0 if score is None else score, *[0.0] * len(example.negatives)]


def _ranks(predictions: list[RelevancePrediction]) -> np.ndarray:
    """Return the rank of each text among its negatives, from 1; it comes last among equal scores."""
    return np.array([1 + sum(other >= each.score for other in each.negatives) for each in predictions], np.int64)
