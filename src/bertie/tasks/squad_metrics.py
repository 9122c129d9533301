"""Exact match and F1 as the official scripts of SQuAD 1.1 and 2.0 count them, and the τ that makes the best of them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertie.tasks.data.squad import Question
from bertie.tasks.predictions import SpanPrediction

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, single blanks between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def squad_scores(
    answers: dict[str, str], questions: Sequence[Question], silent: frozenset[str] = frozenset()
) -> dict[str, float]:
    """answers: by id; a question without one counts 0 in 1.1, and as an empty one in 2.0. All scores 0 to 1.

    2.0's rules hold where one of the questions has no answer: then an answer that is nothing when normalised is no answer,
    and has_answer_… and no_answer_… are given too. silent: ids that are taken for no answer, whatever was answered.
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


def best_scores(answers: dict[str, str], odds: dict[str, float], questions: Sequence[Question]) -> dict[str, float]:
    """best_exact and best_f1, 0 to 1, and the thresholds of `odds` that give them, as the script of SQuAD 2.0 finds them.

    answers, odds: of every question, by id. Equal odds are gone through in their order, and a threshold between them counts,
    as there; `best_threshold` has none between equals.
    """
    known = {question.id: question for question in questions}
    found: dict[str, float] = {}
    for side, name in enumerate(("best_exact", "best_f1")):
        score = best = sum(not question.answers for question in questions)
        threshold = 0.0
        for each in sorted(odds, key=odds.__getitem__):
            answer, question = answers[each], known[each]
            score += score_answer(answer, question, True)[side] if question.answers else -bool(answer)
            if score > best:
                best, threshold = score, odds[each]
        found |= {name: best / len(questions), f"{name}_thresh": threshold}
    return found


def best_threshold(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> float:
    """τ: the threshold of null_score, above which no answer is given, with the highest F1; of several the lowest, halfway to
    the next score, so that rounding on another machine changes no answer."""
    null = np.array([each.null_score for each in predictions])
    order = np.argsort(null, kind="stable")
    silent, spoken = scores_with_and_without_answer(predictions, questions)[..., 1]
    sums = np.concatenate([[0.0], np.cumsum((spoken - silent)[order])])
    null = null[order]
    equals = np.concatenate([[False], null[1:] == null[:-1], [False]])
    at = int(np.where(equals, -np.inf, sums).argmax())  # no threshold is between equals
    edges = np.concatenate([[null[0] - 2], null, [null[-1] + 2]])
    return float(edges[at] + edges[at + 1]) / 2


def scores_with_and_without_answer(predictions: Sequence[SpanPrediction], questions: Sequence[Question]) -> np.ndarray:
    """float64 [2, questions, 2]: exact match and F1 if nothing is answered, and if the best span is, by the rules of 2.0."""
    spans = [next((guess.text for guess in found.guesses if guess.text), "") for found in predictions]
    silent = [score_answer("", question, True) for question in questions]
    return np.array([silent, [score_answer(span, q, True) for span, q in zip(spans, questions, strict=True)]])


def score_answer(answer: str | None, question: Question, second: bool) -> tuple[float, float]:
    """(exact match, F1) of one answer: the best over what people said. second: by the rules of 2.0."""
    if answer is None:
        return 0.0, 0.0
    gold = [each.text for each in question.answers or ()]
    if second:
        gold = [text for text in gold if normalised(text)] or [""]
    found = normalised(answer)
    exact = max((float(found == normalised(text)) for text in gold), default=0.0)
    return exact, max((_f1(found.split(), normalised(text).split(), second) for text in gold), default=0.0)


def _f1(found: list[str], gold: list[str], second: bool) -> float:
    if second and not (found and gold):
        return float(found == gold)
    same = sum((Counter(found) & Counter(gold)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(gold)
    return 2 * precision * recall / (precision + recall)  # rounded as the scripts do


def _means(counted: Sequence[tuple[float, ...]]) -> dict[str, float]:
    exact, f1 = (sum(side) / len(counted) for side in zip(*counted, strict=True))
    return {"exact_match": exact, "f1": f1}
