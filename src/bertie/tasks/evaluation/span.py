"""The evaluation of extractive question answering."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bertie.base.console import percent
from bertie.base.report import TextSpan
from bertie.examples.squad import Question, placed
from bertie.tasks.evaluation.calibration import calibration
from bertie.tasks.evaluation.findings import Curves, Evaluation, Finding, Table
from bertie.tasks.evaluation.passages import Passage, mark, shortened
from bertie.tasks.predictions import SpanPrediction
from bertie.tasks.squad_metrics import answer_scores, scores_with_and_without_answer

_QUESTION_WORDS = ("what", "who", "whom", "whose", "when", "where", "which", "why", "how many", "how much", "how")


def evaluate_answers(
    threshold: float | None, predictions: list[SpanPrediction], examples: list[Question]
) -> Evaluation:
    """Return the evaluation: the loss is the probability of the prediction times 1 − F1.

    Args:
        threshold: τ in use; None if the model always predicts an answer.
        predictions: One per question.
        examples: The questions with their gold answers.
    """
    second = any(not example.answers for example in examples)
    exact, f1 = answer_scores(predictions, examples).T
    confidence = np.array([each.probability for each in predictions])
    losses = confidence * (1 - f1)
    findings: list[Finding] = [*_tables(exact, f1, examples)]
    if second and threshold is not None:
        findings.append(_thresholds(threshold, predictions, examples))
    findings.append(calibration(np.minimum(confidence, 1), exact == 1, {}, "answers"))
    answers = [list(dict.fromkeys(answer.text for answer in example.answers or ())) for example in examples]

    def passage(i: int) -> Passage:
        prediction = predictions[i]
        facts = {"gold": " / ".join(answers[i]) or "no answer"}
        facts["predicted"] = f"{prediction.answer or 'no answer'}, {percent(prediction.probability)}"
        facts["F1"] = f"{f1[i]:.2f}"
        return Passage(facts, [[TextSpan(examples[i].question)], _marked(examples[i], prediction)])

    columns = {"gold": answers, "exact_match": exact.tolist(), "f1": f1.tolist()}
    return Evaluation(columns, losses, "predicted probability times 1 − F1", tuple(findings), passage)


def _tables(exact: np.ndarray, f1: np.ndarray, examples: list[Question]) -> list[Table]:
    """Return the scores by answerability, and by question word."""

    def rows(keys: list[str], order: list[str]) -> list[tuple[str, float, float, int]]:
        names = np.array(keys)
        members = [(key, names == key) for key in order if key in keys]
        return [(key, float(exact[part].mean()), float(f1[part].mean()), int(part.sum())) for key, part in members]

    header = ("exact_match", "f1", "count")
    kinds = ["has an answer" if example.answers else "has none" for example in examples]
    words = [question_word(example.question) for example in examples]
    return [
        Table("answerable", "Questions with and without answer", ("context", *header), rows(kinds, sorted(set(kinds)))),
        Table("question_words", "By question word", ("question", *header), rows(words, [*_QUESTION_WORDS, "other"])),
    ]


def question_word(question: str) -> str:
    """Return the question word of a question: the first one in it, or "other" if there is none."""
    words = "".join(letter if letter.isalnum() else " " for letter in question.lower()).split()
    text = f" {' '.join(words)} "
    places = [(text.index(f" {word} "), -len(word), word) for word in _QUESTION_WORDS if f" {word} " in text]
    return min(places)[2] if places else "other"


def _thresholds(threshold: float, predictions: list[SpanPrediction], examples: list[Question]) -> Curves:
    """Return the scores as functions of τ, at every τ that changes a prediction.

    An answer is given if null_score ≤ τ.
    """
    null = np.array([prediction.null_score for prediction in predictions])
    silent, answered = scores_with_and_without_answer(predictions, examples)
    order = np.argsort(null, kind="stable")
    sums = silent.sum(0) + np.concatenate([[[0.0, 0.0]], np.cumsum((answered - silent)[order], axis=0)])
    xs, last = np.unique(null[order][::-1], return_index=True)
    counts = len(null) - last  # answers given at this τ, including those with a null_score of exactly τ
    means = sums[counts] / len(null)
    finite = np.abs(xs) < 1e8  # beyond that, there was no span or no "no answer" to compare
    at = np.searchsorted(xs, threshold, side="right")
    in_use = float(means[at - 1, 1]) if at else float(sums[0, 1] / len(null))
    xs, means, none = xs[finite], means[finite], sums[0] / len(null)
    if len(xs) and threshold < xs[0]:  # extend the curve to the τ in use: below the lowest score, nothing is answered
        xs, means = np.concatenate([[threshold, np.nextafter(xs[0], threshold)], xs]), np.vstack([none, none, means])
    elif len(xs) and threshold > xs[-1]:
        xs, means = np.append(xs, threshold), np.vstack([means, means[-1]])
    curves = {"f1": means[:, 1].tolist(), "exact match": means[:, 0].tolist()}
    note = (
        "The model predicts no answer if its score exceeds that of the best span by more than τ; a larger τ gives more "
        f"answers. In use is τ = {threshold:.4g}, tuned on the dev questions of fine-tuning. "
        f"Baseline: never answering scores f1 {none[1]:.3f}."
    )
    return Curves("threshold", "No-answer threshold", note, xs.tolist(), curves, (threshold, in_use), "τ", "score")


def _marked(example: Question, prediction: SpanPrediction) -> list[TextSpan]:
    """Return the context, shortened, with the gold and the predicted answer marked."""
    text = example.context
    answer = placed(example.answers[0], text) if example.answers else None
    spans = [(answer.start, answer.start + len(answer.text)) if answer else (0, 0), (prediction.start, prediction.end)]
    edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
    parts = []
    for start, end in pairwise(edges):
        gold, predicted = (first <= start and end <= last for first, last in spans)
        parts.append(TextSpan(text[start:end], mark(gold, predicted)))
    return shortened(parts)
