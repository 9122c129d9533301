"""Questions answered by a piece of their context: SQuAD 1.1 and 2.0 (Devlin et al. 2018, sections 4.2 and 4.3).

A start and an end vector score every token; the answer is the best pair of a start and an end not before it. Contexts that
are too long are read in windows, and an answer may start in the window only where its token has most context on
both sides. In 2.0 [CLS] stands for "the context does not say": that is the answer where its score is more than the
best span's and τ (`threshold`), which is found on the dev questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from bertie.contracts import Batch, Sequence, Targets
from bertie.errors import UsageError, UserError, require_range
from bertie.model.config import BertConfig
from bertie.model.heads import PRODUCT, ConditionalSpanHead, TokenHead
from bertie.model.losses import choice
from bertie.tasks.data.prediction_files import answer_of
from bertie.tasks.data.squad import Question, QuestionColumns, SquadReader, placed
from bertie.tasks.encoding import by_example, softmax
from bertie.tasks.evaluation.findings import Evaluation
from bertie.tasks.evaluation.span import evaluate_answers
from bertie.tasks.predictions import SpanCandidate, SpanPrediction
from bertie.tasks.squad_metrics import best_threshold, squad_scores
from bertie.tasks.task import Unit
from bertie.text import truncation
from bertie.text.tokenizer import Tokenizer


class _Place(NamedTuple):
    """Of one window, where its tokens of the context lie, whether an answer may start there, and where the right one lies."""

    first: int
    last: int
    may_start: np.ndarray
    answer: tuple[int, int] | None


@dataclass(frozen=True)
class Span:
    kind: Literal["span"] = "span"
    question: str = ""
    """Column of the question in .jsonl, .csv and .tsv (empty: question)."""
    context: str = ""
    """Column of what it is asked of (empty: context)."""
    answers: str = ""
    """Column of the answer, empty for none; in .jsonl also a list of them, or SQuAD's (empty: answers or answer)."""
    doc_stride: int = 128
    """Tokens from the start of a window to that of the next (BERT's doc_stride); 0: half a window."""
    max_query_length: int = 64
    """Most tokens of a question, and no more than half of a window; the rest is cut off."""
    max_answer_length: int = 30
    """Most tokens of an answer."""
    n_best_size: int = 20
    """How many of the best spans predictions hold."""
    conditional: bool = False
    """Let the end depend on the start; the paper's are independent."""
    threshold: float | None = None
    """τ: how much better than the best span no answer must score to be given (SQuAD 2.0); finetune finds it on the dev questions,
    where some have none. None: there always is an answer."""

    def __post_init__(self) -> None:
        require_range("task", self, "max_query_length", "max_answer_length", "n_best_size", low=1)
        require_range("task", self, "doc_stride", low=0)
        if self.threshold is not None and not np.isfinite(self.threshold):
            raise UsageError(f"task.threshold is {self.threshold}: give a finite number, or None")

    @property
    def labels(self) -> tuple[str, ...]:
        return ()

    @property
    def unit(self) -> Unit:
        return "sequence"

    @property
    def metric(self) -> str:
        return "f1"

    @property
    def reader(self) -> SquadReader:
        return SquadReader(QuestionColumns(self.question, self.context, self.answers))

    def fit(self, examples: list[Question]) -> Span:
        self.validate(examples)
        if not any(example.answers for example in examples):
            raise UserError(f"no question has an answer ({examples[0].source} …): nothing to learn")
        silent = any(not example.answers for example in examples)
        return replace(self, threshold=0.0) if silent and self.threshold is None else self

    def validate(self, examples: list[Question]) -> None:
        """Errors: UserError naming the first question of which nobody said the answer, nor that there is none, or whose id
        another has."""
        seen: set[str] = set()
        for example in examples:
            if example.answers is None:
                raise UserError(f"{example.source}: no answers")
            if example.id in seen:
                raise UserError(f"{example.source}: the id {example.id!r} is there already")
            seen.add(example.id)

    def encode(self, examples: list[Question], tokenizer: Tokenizer, max_length: int) -> list[Sequence]:
        """Windows of every question. An answer that does not lie in its context, as tokens see it, has no target."""
        texts = list(
            dict.fromkeys(text for each in examples for text in (each.question, each.context))
        )  # many share one
        read = dict(zip(texts, truncation.tokenize(tokenizer, texts, offsets=True), strict=True))
        sequences = []
        for number, example in enumerate(examples):
            question, context = read[example.question], read[example.context]
            asked = question.take(slice(min(self.max_query_length, (max_length - 3) // 2)))
            spans = truncation.window_spans(len(context.ids), max_length - len(asked.ids) - 3, self.doc_stride)
            answer = _answer_tokens(example, context)
            may_start = _most_context(spans, len(context.ids))
            for part, span in enumerate(spans):
                sequence = truncation.add_special_tokens(tokenizer, [asked, context.take(span)])
                first = len(asked.ids) + 2
                target = _Place(first, first + span.stop - span.start, may_start[part], _within(answer, span, first))
                truncated = len(question.ids) - len(asked.ids)
                sequences.append(replace(sequence, example=number, part=part, target=target, truncated=truncated))
        return sequences

    def training_sequences(self, sequences: list[Sequence]) -> list[Sequence]:
        """Questions whose answer does not lie in their context are left out, as BERT's code does it."""
        return [sequence for sequence in sequences if sequence.target.answer is not None]

    def head_positions(self, sequence: Sequence) -> np.ndarray:
        return np.arange(len(sequence))

    def head(self, config: BertConfig, width: int) -> TokenHead | ConditionalSpanHead:  # noqa: ARG002
        return ConditionalSpanHead(width) if self.conditional else TokenHead(width, 2, 0.0, choice)

    def targets(self, batch: Batch, sequences: list[Sequence], index: np.ndarray) -> Targets:
        """Starts and ends are each one choice among the tokens of a window: weight is float32 [P, 2]."""
        window = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])  # without a filler
        weight = np.zeros((len(index), 2), np.float32)
        for start, sequence in zip(batch.ragged.cu_seqlens, sequences, strict=False):
            for side, token in enumerate(sequence.target.answer or ()):
                weight[start + token, side] = 1
        return Targets(index, window, weight)

    def decode(
        self, outputs: list[np.ndarray], sequences: list[Sequence], examples: list[Question]
    ) -> list[SpanPrediction]:
        windows = by_example(list(zip(outputs, sequences, strict=True)), sequences, len(examples))
        return [self._decode(each, example) for each, example in zip(windows, examples, strict=True)]

    def _decode(self, windows: list[tuple[np.ndarray, Sequence]], example: Question) -> SpanPrediction:
        null = min(float(logits[0, 0] + self._ends(logits[:, 1:], slice(0, 1))[0, 0]) for logits, _ in windows)
        spans = sorted((span for window in windows for span in self._spans(*window)), key=lambda span: -span[0])
        spans = spans[: self.n_best_size]
        best = spans[0][0] if spans else -np.inf
        scored = [(score, example.context[start:end], start, end) for score, start, end in spans]
        if self.threshold is not None:
            scored.append((null, "", 0, 0))
        scored.sort(key=lambda each: -each[0])
        probabilities = softmax(np.array([score for score, *_ in scored])) if scored else []
        guesses = [
            SpanCandidate(text, start, end, float(score), float(p))
            for (score, text, start, end), p in zip(scored, probabilities, strict=True)
        ]
        said = self.threshold is None or null - best <= self.threshold
        chosen = next((guess for guess in guesses if bool(guess.text) == said), SpanCandidate("", 0, 0, null, 0.0))
        null_score = float(np.clip(null - best, -1e9, 1e9))
        return SpanPrediction(
            example.id, chosen.text, chosen.start, chosen.end, chosen.probability, null_score, guesses
        )

    def _spans(self, logits_TC: np.ndarray, sequence: Sequence) -> list[tuple[float, int, int]]:
        """The best spans of a window: (score, first character, character behind the last)."""
        place, offsets = sequence.target, sequence.offsets
        assert offsets is not None
        context = slice(place.first, place.last)
        size = place.last - place.first
        width = min(self.max_answer_length, size)
        if not size:
            return []
        ends_SE = self._ends(logits_TC[:, 1:], context)[:, context]
        start, end = np.arange(size)[:, None], np.arange(size)[:, None] + np.arange(width)  # [start, length − 1]
        scores = logits_TC[context, :1] + np.where(end < size, ends_SE[start, np.minimum(end, size - 1)], -np.inf)
        scores = np.where(place.may_start[:, None], scores, -np.inf)
        flat = scores.ravel()
        most = min(self.n_best_size, flat.size)
        enough = np.flatnonzero(flat >= np.partition(flat, -most)[-most])
        top = enough[np.argsort(-flat[enough], kind="stable")][:most]  # of equals the earliest start, then the shortest
        inside = offsets[place.first : place.last]
        return [
            (float(flat[i]), int(inside[i // width, 0]), int(inside[i // width + i % width, 1]))
            for i in top
            if flat[i] > -np.inf
        ]

    def _ends(self, logits_TC: np.ndarray, starts: slice) -> np.ndarray:
        """[start, end]: how well every token of a window is the end for some starts. logits: as the head has them, but for the
        start's.

        Where the end depends on the start, training makes a softmax over the ends of each; so its logarithm is what
        adds up with the start. Independent ends have one softmax for all, which changes no order.
        """
        ends_T = logits_TC[:, 0]
        if not self.conditional:
            return np.broadcast_to(ends_T, (len(logits_TC[starts]), len(ends_T)))
        ends_ST = ends_T + logits_TC[starts, 1 : 1 + PRODUCT] @ logits_TC[:, 1 + PRODUCT :].T
        return ends_ST - np.logaddexp.reduce(ends_ST, axis=1, keepdims=True)

    def calibrate(self, predictions: list[SpanPrediction], examples: list[Question]) -> Span:
        """With the τ that gives the best F1 on these examples, where there are questions of both kinds."""
        if self.threshold is None or len({bool(example.answers) for example in examples}) < 2:
            return self
        return replace(self, threshold=best_threshold(predictions, examples))

    def read_prediction(self, values: dict[str, Any], example: Question, place: str) -> SpanPrediction:
        answer = answer_of(values, "answer", place)
        if not isinstance(answer, str):
            raise UserError(f"{place}: the answer must be a string, found {str(answer)[:40]!r}")
        return SpanPrediction(example.id, answer, 0, 0, 0.0, 0.0, [])

    def score(self, predictions: list[SpanPrediction], examples: list[Question]) -> dict[str, float]:
        """exact_match and f1, 0 to 1; for 2.0 also of the questions with an answer and those without. Errors: as `check`."""
        self.validate(examples)
        return squad_scores({found.id: found.answer for found in predictions}, examples)

    def constant_predictions(self, examples: list[Question]) -> list[list[SpanPrediction]]:
        """No answer."""
        return [[SpanPrediction(example.id, "", 0, 0, 1.0, 1.0, []) for example in examples]]

    def evaluate(self, predictions: list[SpanPrediction], examples: list[Question]) -> Evaluation:
        self.validate(examples)
        return evaluate_answers(self.threshold, predictions, examples)


def _answer_tokens(example: Question, context: truncation.TokenizedText) -> tuple[int, int] | None:
    """First and last token of the first answer; (−1, −1) for none; None where the context does not hold it."""
    if not example.answers:
        return (-1, -1)
    answer = placed(example.answers[0], example.context)
    if answer is None or context.offsets is None:
        return None
    first = int(context.offsets[:, 1].searchsorted(answer.start, "right"))
    last = int(context.offsets[:, 0].searchsorted(answer.start + len(answer.text), "left")) - 1
    return (first, last) if first <= last else None


def _within(answer: tuple[int, int] | None, span: slice, first: int) -> tuple[int, int] | None:
    """Where in its window the answer lies; at [CLS] if not all of it is there."""
    if answer is None:
        return None
    start, end = answer
    return (start - span.start + first, end - span.start + first) if span.start <= start <= end < span.stop else (0, 0)


def _most_context(spans: list[slice], size: int) -> list[np.ndarray]:
    """Of each window, which tokens have nowhere more context on their shorter side (and in a tie, a longer window)."""
    if len(spans) == 1:
        return [np.ones(size, bool)]
    best = np.full(size, -1.0)
    scores = []
    for span in spans:
        at = np.arange(span.stop - span.start)
        scores.append(np.minimum(at, at[::-1]) + 0.01 * len(at))
        best[span] = np.maximum(best[span], scores[-1])
    taken = np.zeros(size, bool)
    found = []
    for span, score in zip(spans, scores, strict=True):
        found.append((score == best[span]) & ~taken[span])  # the first window of equals
        taken[span] |= found[-1]
    return found
