"""Exact match and F1, as the official scripts of SQuAD 1.1 and 2.0 compute them, and the τ that maximizes F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertie.base.errors import UserError
from bertie.examples.squad import Question
from bertie.tasks.predictions import SpanPrediction

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Return an answer in lower case, without ASCII punctuation and English articles, with single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def squad_scores(
    answers: dict[str, str], questions: Sequence[Question], silent: frozenset[str] = frozenset()
) -> dict[str, float]:
    """Return exact_match and f1, 0 to 1.

    The rules of SQuAD 2.0 apply if one of the questions has no answer. Then an answer that is empty after normalization
    counts as no answer, and the scores of the questions with and without answer are returned too, with the prefixes
    has_answer_ and no_answer_.

    Args:
        answers: The predicted answers by id. A question without one scores 0 in SQuAD 1.1; in 2.0 it counts as no
            answer.
        questions: The questions with their gold answers.
        silent: Ids of questions whose prediction counts as no answer, whatever `answers` says.
    """
    second = any(not question.answers for question in questions)
    counted = [
        (float(not question.answers),) * 2
        if question.id in silent
        else score_answer(answers.get(question.id, "" if second else None), question, second)
        for question in questions
    ]
    scores = _means(counted)
    if second:
        for name, kind in (("has_answer", True), ("no_answer", False)):
            part = [each for each, question in zip(counted, questions, strict=True) if bool(question.answers) == kind]
            if part:
                scores |= {f"{name}_{key}": value for key, value in _means(part).items()}
    return scores


def score_with_odds(
    task: object,  # noqa: ARG001
    predictions: Sequence[SpanPrediction],
    questions: Sequence[Question],
    odds: dict[str, float],
    threshold: float,
) -> dict[str, float]:
    """Return `squad_scores`, where questions with odds above the threshold have no answer, and `best_scores`.

    It is `Task.score_with_odds`. Raises UserError if all questions have an answer.
    """
    if all(question.answers for question in questions):
        raise UserError("--null-odds needs data with questions that have no answer, as SQuAD 2.0")
    answers = {prediction.id: prediction.answer for prediction in predictions}
    silent = frozenset(name for name, value in odds.items() if value > threshold)
    return squad_scores(answers, questions, silent) | best_scores(answers, odds, questions)


def best_scores(answers: dict[str, str], odds: dict[str, float], questions: Sequence[Question]) -> dict[str, float]:
    """Return best_exact and best_f1, 0 to 1, and the thresholds of `odds` that give them, like the script of SQuAD 2.0.

    Like the script, it also tries thresholds between equal odds, in the order of `odds`. `best_threshold` does not.

    Args:
        answers: The predicted answer of every question, by id.
        odds: How likely "no answer" is for every question, by id.
        questions: The questions with their gold answers.
    """
    known = {question.id: question for question in questions}
    scores: dict[str, float] = {}
    for side, name in enumerate(("best_exact", "best_f1")):
        score = best = sum(not question.answers for question in questions)
        threshold = 0.0
        for key in sorted(odds, key=odds.__getitem__):
            answer, question = answers[key], known[key]
            score += score_answer(answer, question, True)[side] if question.answers else -bool(answer)
            if score > best:
                best, threshold = score, odds[key]
        scores |= {name: best / len(questions), f"{name}_thresh": threshold}
    return scores


def best_threshold(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> float:
    """Return τ, the threshold of null_score above which no answer is predicted, that maximizes F1.

    Of several best thresholds, the lowest counts. It lies halfway between two scores, so that a rounding difference on
    another machine changes no answer.
    """
    null = np.array([prediction.null_score for prediction in predictions])
    order = np.argsort(null, kind="stable")
    silent, spoken = scores_with_and_without_answer(predictions, questions)[..., 1]
    sums = np.concatenate([[0.0], np.cumsum((spoken - silent)[order])])
    null = null[order]
    equals = np.concatenate([[False], null[1:] == null[:-1], [False]])
    at = int(np.where(equals, -np.inf, sums).argmax())  # no threshold lies between equal scores
    edges = np.concatenate([[null[0] - 2], null, [null[-1] + 2]])
    return float(edges[at] + edges[at + 1]) / 2


def scores_with_and_without_answer(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> np.ndarray:
    """Return exact match and F1 of every question by the rules of SQuAD 2.0, float64 [2, questions, 2].

    The first index is 0 for predicting no answer and 1 for predicting the best span; the last is 0 for exact match and
    1 for F1.
    """
    spans = [next((guess.text for guess in prediction.guesses if guess.text), "") for prediction in predictions]
    silent = [score_answer("", question, True) for question in questions]
    return np.array([silent, [score_answer(span, q, True) for span, q in zip(spans, questions, strict=True)]])


def answer_scores(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> np.ndarray:
    """Return exact match and F1 of each prediction, [N, 2]."""
    second = any(not question.answers for question in questions)
    return np.array([score_answer(p.answer, q, second) for p, q in zip(predictions, questions, strict=True)])


def score_answer(answer: str | None, question: Question, second: bool) -> tuple[float, float]:
    """Return (exact match, F1) of one answer, each the best over all gold answers.

    Args:
        answer: The predicted answer, empty for no answer; None if there is no prediction.
        question: The question with its gold answers.
        second: Whether the rules of SQuAD 2.0 apply.
    """
    if answer is None:
        return 0.0, 0.0
    gold = [right.text for right in question.answers or ()]
    if second:
        gold = [text for text in gold if normalize_answer(text)] or [""]
    predicted = normalize_answer(answer)
    exact = max((float(predicted == normalize_answer(text)) for text in gold), default=0.0)
    return exact, max((_f1(predicted.split(), normalize_answer(text).split(), second) for text in gold), default=0.0)


def _f1(predicted: list[str], gold: list[str], second: bool) -> float:
    if second and not (predicted and gold):
        return float(predicted == gold)
    same = sum((Counter(predicted) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)  # this order of operations rounds like the scripts


def _means(counted: Sequence[tuple[float, ...]]) -> dict[str, float]:
    exact, f1 = (sum(side) / len(counted) for side in zip(*counted, strict=True))
    return {"exact_match": exact, "f1": f1}
