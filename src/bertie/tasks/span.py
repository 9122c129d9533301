"""Extractive question answering, as in SQuAD 1.1 and 2.0 (Devlin et al. 2018, sections 4.2 and 4.3).

A start vector and an end vector score every token. The answer is the span of the context whose start and end scores
have the largest sum. Long contexts are read in overlapping windows; an answer may start only in the window where its
first token has the most context on both sides. In SQuAD 2.0, [CLS] stands for "no answer": it is predicted if its score
exceeds the best span's by more than τ (`threshold`), which is tuned on the dev questions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from bertie.base import console
from bertie.base.config import Count, Positive, check_ranges
from bertie.base.contracts import Batch, Sequence, Targets
from bertie.base.errors import UsageError, UserError
from bertie.examples.reader import Reader
from bertie.examples.squad import Question, Questions, placed
from bertie.model.config import PooledToken
from bertie.model.encoder import EncoderConfig
from bertie.model.head_facts import HeadFacts
from bertie.model.heads.heads import PAIR_SIZE, ConditionalSpanHead, TokenHead
from bertie.model.losses.losses import grouped_cross_entropy
from bertie.tasks.encoding import by_example, softmax
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.span import evaluate_answers
from bertie.tasks.example_sums import ExampleSums, mean_sums
from bertie.tasks.foreign_head import ForeignHead
from bertie.tasks.prediction_files import answer_of
from bertie.tasks.predictions import SpanCandidate, SpanPrediction
from bertie.tasks.squad_metrics import answer_scores, best_threshold, score_with_odds, squad_scores
from bertie.tasks.task import SEQUENCE, TaskDefaults
from bertie.tasks.word_alignment import with_combining_marks
from bertie.tokenizers import truncation
from bertie.tokenizers.tokenizer import Tokenizer


class _WindowTarget(NamedTuple):
    """The context in one window, and the gold answer in it. n tokens of context."""

    first: int
    """Position of the first context token in the sequence."""
    last: int
    """Position after the last context token."""
    may_start: np.ndarray
    """bool [n]: whether an answer may start at a context token in this window, rather than in another one."""
    answer: tuple[int, int] | None
    """Positions of the first and last token of the gold answer; twice `null` if it is not in this window; None if the
    question cannot be trained on."""
    null: int
    """Position of [CLS], which stands for "no answer"."""


@dataclass(frozen=True)
class Span(TaskDefaults):
    """Answer a question with a span of its context."""

    prediction = SpanPrediction
    unit = SEQUENCE
    text_pooling = None
    labels = ()
    paired = None
    metric = "f1"
    tuned = "threshold"
    scored_apart = False  # the best τ on all dev questions is a score of SQuAD 2.0's script
    untrainable = "the answer is not in the context"
    input_form = "a list of a question and its context"
    score_with_odds = score_with_odds

    kind: Literal["span"] = "span"
    question: str = ""
    """Column of the question, in all formats but SQuAD's .json; empty: question."""
    context: str = ""
    """Column of the context; empty: context."""
    answers: str = ""
    """Column of the answer; an empty cell means no answer. In .jsonl, also a list of answers or SQuAD's object. Empty:
    answers or answer."""
    doc_stride: Count = 128
    """Stride of the windows: tokens from the start of one to the start of the next; 0: half a window."""
    max_query_length: Positive = 64
    """Maximum question length in tokens, limited to half a window. Longer questions are truncated."""
    max_answer_length: Positive = 30
    """Maximum length of a predicted answer in tokens."""
    n_best_size: Positive = 20
    """Number of best spans that a prediction lists."""
    conditional: bool = False
    """Predict the end of the answer given its start. In the paper, the two are independent."""
    threshold: float | None = None
    """τ of SQuAD 2.0, tuned on the dev set: predict no answer if its score exceeds the best span's by more than τ.

    None: always answer.
    """

    def __post_init__(self) -> None:
        check_ranges("task", self)
        if self.threshold is not None and not np.isfinite(self.threshold):
            raise UsageError(f"task.threshold is {self.threshold}: set a finite number, or None")

    @property
    def facts(self) -> HeadFacts:
        shape = None if self.conditional else "start_end"
        return HeadFacts("question answering", "answers from a context", "question-answering", shape)

    @property
    def reader(self) -> Reader:
        return Reader(Questions(self.question or "question", self.context or "context", self.answers))

    @classmethod
    def from_head(cls, head: ForeignHead) -> Self | None:
        return cls() if head.shape == "start_end" and head.outputs == 2 else None

    def fit(self, examples: list[Question]) -> Span:
        """Return the task, with a threshold of 0 if some questions have no answer and none is set.

        Raises:
            UserError: As `validate`, or no question has an answer.
        """
        self.validate(examples)
        if not any(example.answers for example in examples):
            raise UserError(f"no question has an answer ({examples[0].source} …): nothing to learn")
        if several := sum(len({answer.text for answer in example.answers or ()}) > 1 for example in examples):
            shown = f"{several:,} of {len(examples):,} questions"
            console.info(f"{shown} have several answers: training uses the first of each")
        unanswerable = any(not example.answers for example in examples)
        return replace(self, threshold=0.0) if unanswerable and self.threshold is None else self

    def validate(self, examples: list[Question]) -> None:
        """Check that the gold answers of every question are known, be they none, and that ids are unique.

        Raises:
            UserError: Names the first question that fails.
        """
        seen: set[str] = set()
        for example in examples:
            if example.answers is None:
                raise UserError(f"{example.source}: no answers")
            if example.id in seen:
                raise UserError(f"{example.source}: duplicate id {example.id!r}")
            seen.add(example.id)

    def encode(self, examples: list[Question], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Encode the windows of every question.

        A gold answer that no tokens of the context cover is a target of None.
        """
        # Many questions share a context.
        texts = list(dict.fromkeys(text for each in examples for text in (each.question, each.context)))
        tokenized = dict(zip(texts, truncation.tokenize(tokenizer, texts, offsets=True), strict=True))
        special = truncation.special_tokens(tokenizer, 2)
        ends = tokenizer.templates.lengths_around[0] == 0 < special  # XLNet has its <cls> at the end
        sequences = []
        for number, example in enumerate(examples):
            question, context = tokenized[example.question], tokenized[example.context]
            query = question.take(slice(min(self.max_query_length, (max_length - special) // 2)))
            spans = truncation.window_spans(len(context.ids), max_length - len(query.ids) - special, self.doc_stride)
            answer = _answer_tokens(example, context)
            may_start = _most_context(spans, len(context.ids))
            for part, span in enumerate(spans):
                sequence = truncation.add_special_tokens(tokenizer, [query, context.take(span)])
                _, read = truncation.text_slices(tokenizer, [len(query.ids), span.stop - span.start])
                null = len(sequence) - 1 if ends else 0
                gold = _within(answer, span, read.start, null)
                target = _WindowTarget(read.start, read.stop, may_start[part], gold, null)
                truncated = len(question.ids) - len(query.ids)
                sequences.append(replace(sequence, example=number, part=part, target=target, truncated=truncated))
        return sequences

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        """Return the windows to train on: without questions whose gold answer was not found in the context.

        BERT's code leaves these out too.
        """
        return [sequence for sequence in sequences if sequence.target.answer is not None]

    def head_positions(self, sequence: Sequence, pooled: PooledToken) -> np.ndarray:  # noqa: ARG002
        return np.arange(len(sequence))

    def head(self, config: EncoderConfig, width: int) -> TokenHead | ConditionalSpanHead:
        if self.conditional:
            return ConditionalSpanHead(width)
        return TokenHead(width, 2, 0.0, grouped_cross_entropy, config.head_layers)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:
        """Return targets for two softmaxes over the tokens of each window, of starts and of ends.

        label is the window of each token; weight is float32 [P, 2], 1 at the gold start and at the gold end.
        """
        window = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])  # without the padding
        weight = np.zeros((len(index), 2), np.float32)
        for start, sequence in zip(batch.ragged.cu_seqlens, sequences, strict=False):
            for side, token in enumerate(sequence.target.answer or ()):
                weight[start + token, side] = 1
        return Targets(index, window, weight)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Question]
    ) -> list[SpanPrediction]:
        """Return the best span of each question over all its windows, or no answer if τ says so."""
        windows = by_example(list(zip(outputs, sequences, strict=True)), sequences, len(examples))
        return [self._decode(question, example) for question, example in zip(windows, examples, strict=True)]

    def _decode(self, windows: list[tuple[np.ndarray, Sequence]], example: Question) -> SpanPrediction:
        null = min(self._null(logits, sequence.target.null) for logits, sequence in windows)
        spans = sorted((span for window in windows for span in self._spans(*window)), key=lambda span: -span[0])
        spans = spans[: self.n_best_size]
        best = spans[0][0] if spans else -np.inf
        whole = [(score, start, with_combining_marks(example.context, end)) for score, start, end in spans]
        # Some tokenizers count the space before a word to its token.
        trimmed = [(score, end - len(example.context[start:end].lstrip()), end) for score, start, end in whole]
        scored = [(score, example.context[start:end], start, end) for score, start, end in trimmed]
        if self.threshold is not None:
            scored.append((null, "", 0, 0))
        scored.sort(key=lambda each: -each[0])
        probabilities = softmax(np.array([score for score, *_ in scored])) if scored else []
        guesses = [
            SpanCandidate(text, start, end, float(score), float(p))
            for (score, text, start, end), p in zip(scored, probabilities, strict=True)
        ]
        answered = self.threshold is None or null - best <= self.threshold
        chosen = next((guess for guess in guesses if bool(guess.text) == answered), SpanCandidate("", 0, 0, null, 0.0))
        null_score = float(np.clip(null - best, -1e9, 1e9))
        answer = (chosen.text, chosen.start, chosen.end, chosen.probability)
        return SpanPrediction(example.id, *answer, null_score, guesses)

    def _spans(self, logits_TC: np.ndarray, sequence: Sequence) -> list[tuple[float, int, int]]:
        """Return the n best spans of a window: (score, first character, character after the last)."""
        target, offsets = sequence.target, sequence.offsets
        assert offsets is not None
        context = slice(target.first, target.last)
        size = target.last - target.first
        width = min(self.max_answer_length, size)
        if not size:
            return []
        ends_SE = self._ends(logits_TC[:, 1:], context)[:, context]
        start, end = np.arange(size)[:, None], np.arange(size)[:, None] + np.arange(width)  # [start, length − 1]
        scores = logits_TC[context, :1] + np.where(end < size, ends_SE[start, np.minimum(end, size - 1)], -np.inf)
        scores = np.where(target.may_start[:, None], scores, -np.inf)
        flat = scores.ravel()
        count = min(self.n_best_size, flat.size)
        candidates = np.flatnonzero(flat >= np.partition(flat, -count)[-count])
        top = candidates[np.argsort(-flat[candidates], kind="stable")][:count]  # ties: earliest start, then shortest
        characters = offsets[target.first : target.last]
        return [
            (float(flat[i]), int(characters[i // width, 0]), int(characters[i // width + i % width, 1]))
            for i in top
            if flat[i] > -np.inf
        ]

    def _null(self, logits_TC: np.ndarray, null: int) -> float:
        """Return the score of no answer in a window: a span of [CLS] alone."""
        return float(logits_TC[null, 0] + self._ends(logits_TC[:, 1:], slice(null, null + 1))[0, null])

    def _ends(self, logits_TC: np.ndarray, starts: slice) -> np.ndarray:
        """Return the end scores [start, end] of every token of a window, for a slice of starts.

        logits_TC are the head's outputs without the first column, the start scores. With `conditional`, training takes
        a softmax over the ends of each start, so the log-probability is the score to add to the start score.
        Independent ends share one softmax, which does not change the order: there the logit is the score.
        """
        ends_T = logits_TC[:, 0]
        if not self.conditional:
            return np.broadcast_to(ends_T, (len(logits_TC[starts]), len(ends_T)))
        ends_ST = ends_T + logits_TC[starts, 1 : 1 + PAIR_SIZE] @ logits_TC[:, 1 + PAIR_SIZE :].T
        return ends_ST - np.logaddexp.reduce(ends_ST, axis=1, keepdims=True)

    def calibrate(self, predictions: list[SpanPrediction], examples: list[Question]) -> Span:
        """Return the task with the τ that maximizes F1 on these examples, if some have an answer and some have none."""
        if self.threshold is None or len({bool(example.answers) for example in examples}) < 2:
            return self
        return replace(self, threshold=best_threshold(predictions, examples))

    def read_prediction(self, values: dict[str, Any], example: Question, place: str) -> SpanPrediction:
        answer = answer_of(values, "answer", place)
        if not isinstance(answer, str):
            raise UserError(f"{place}: the answer must be a string, found {str(answer)[:40]!r}")
        return SpanPrediction(example.id, answer, 0, 0, 0.0, 0.0, [])

    def score(self, predictions: list[SpanPrediction], examples: list[Question]) -> dict[str, float]:
        """Return exact_match and f1, 0 to 1, as `squad_scores`. Raises UserError as `validate`."""
        self.validate(examples)
        return squad_scores({prediction.id: prediction.answer for prediction in predictions}, examples)

    def sums(self, predictions: list[SpanPrediction], examples: list[Question]) -> dict[str, ExampleSums]:
        self.validate(examples)
        exact, f1 = answer_scores(predictions, examples).T
        return {"exact_match": mean_sums(exact), "f1": mean_sums(f1)}

    def constant_predictions(self, examples: list[Question]) -> list[list[SpanPrediction]]:
        """Return baselines that ignore the question: never an answer, or the first words of the context.

        On the dev set of SQuAD 1.1, the first 16 words have an F1 of 9.3 %.
        """
        return [[_opening(example, words) for example in examples] for words in (0, 1, 4, 16)]

    def evaluate(self, predictions: list[SpanPrediction], examples: list[Question]) -> Evaluation:
        self.validate(examples)
        return evaluate_answers(self.threshold, predictions, examples)


def _opening(example: Question, words: int) -> SpanPrediction:
    """The prediction of the first words of the context; 0: no answer."""
    end = max((word.end() for word in islice(re.finditer(r"\S+", example.context), words)), default=0)
    return SpanPrediction(example.id, example.context[:end], 0, end, 1.0, 0.0 if end else 1.0, [])


def _answer_tokens(example: Question, context: truncation.TokenizedText) -> tuple[int, int] | None:
    """Return the first and last token of the first gold answer, (−1, −1) without one, None if the context lacks it."""
    if not example.answers:
        return (-1, -1)
    answer = placed(example.answers[0], example.context)
    if answer is None or context.offsets is None:
        return None
    first = int(context.offsets[:, 1].searchsorted(answer.start, "right"))
    last = int(context.offsets[:, 0].searchsorted(answer.start + len(answer.text), "left")) - 1
    return (first, last) if first <= last else None


def _within(answer: tuple[int, int] | None, span: slice, first: int, null: int) -> tuple[int, int] | None:
    """Return the positions of the answer in a window; twice `null` if it is not completely in it."""
    if answer is None:
        return None
    start, end = answer
    shift = first - span.start
    return (start + shift, end + shift) if span.start <= start <= end < span.stop else (null, null)


def _most_context(spans: list[slice], size: int) -> list[np.ndarray]:
    """Return bool [tokens] for each window: which tokens have more context in it than in any other window.

    The context of a token is that on its shorter side. In a tie the longer window wins, then the first.
    """
    if len(spans) == 1:
        return [np.ones(size, bool)]
    best = np.full(size, -1.0)
    scores = []
    for span in spans:
        at = np.arange(span.stop - span.start)
        scores.append(np.minimum(at, at[::-1]) + 0.01 * len(at))
        best[span] = np.maximum(best[span], scores[-1])
    taken = np.zeros(size, bool)
    chosen = []
    for span, score in zip(spans, scores, strict=True):
        chosen.append((score == best[span]) & ~taken[span])
        taken[span] |= chosen[-1]
    return chosen
