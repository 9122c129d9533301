"""The formulas on sums of rows equal the scores of the tasks, also on samples of the examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples.own_task import Ordinal
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.examples.choices import ChoiceExample
from bertie.examples.label_sets import LabelSetExample
from bertie.examples.marked_texts import RelationExample
from bertie.examples.squad import Answer, Question
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example
from bertie.tasks import AnyTask, Choose, Classify, MultiLabel, Regress, Relate, Span, Tag
from bertie.tasks.example_sums import FORMULAS
from bertie.tasks.label_sets import LabelSetPrediction
from bertie.tasks.predictions import (
    ChoicePrediction,
    ClassPrediction,
    NumberPrediction,
    SpanPrediction,
    TagPrediction,
)

TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def text(label: Any) -> Example:
    return Example("text", None, label, "here")


def made(kind: str, rng: np.random.Generator, n: int) -> tuple[AnyTask, list[Any], list[Any]]:
    """A task with n random predictions and examples."""
    if kind in ("two classes", "three classes"):
        labels = ("a", "b", "c")[: 2 if kind == "two classes" else 3]
        found = [ClassPrediction(str(rng.choice(labels)), {}) for _ in range(n)]
        return Classify(labels=labels), found, [text(str(rng.choice(labels))) for _ in range(n)]
    if kind == "ordinal":
        labels = ("1", "2", "3", "4", "5")
        found = [ClassPrediction(str(rng.choice(labels)), {}) for _ in range(n)]
        return Ordinal(labels=labels), found, [text(str(rng.choice(labels))) for _ in range(n)]
    if kind == "choose":
        examples = [ChoiceExample("c", "", ["x", "y"], int(rng.integers(2)), "here") for _ in range(n)]
        return Choose(), [ChoicePrediction(int(rng.integers(2)), []) for _ in range(n)], examples
    if kind == "regress":
        gold = rng.normal(size=n) + 100
        return Regress(), [NumberPrediction(float(x)) for x in gold + rng.normal(size=n)], [text(str(x)) for x in gold]
    if kind in ("span", "span with unanswerable questions"):
        words = ["red", "the red", "blue house", "a blue house", "green"]
        gold = [(Answer(str(rng.choice(words)), 0),) for _ in range(n)]
        if kind != "span":
            gold = [() if rng.random() < 0.3 else answer for answer in gold] + [()]
            gold = gold[-n:]
        answers = [str(rng.choice([*words, ""])) for _ in range(n)]
        found = [SpanPrediction(str(i), answer, 0, 0, 1.0, 0.0, []) for i, answer in enumerate(answers)]
        return Span(), found, [Question(str(i), "q", "c", each, "here") for i, each in enumerate(gold)]
    if kind == "relate":
        names = ("Other", "a(e1,e2)", "a(e2,e1)", "b")
        found = [ClassPrediction(str(rng.choice(names)), {}) for _ in range(n)]
        gold = [RelationExample("x y", (0, 1), (2, 3), None, None, str(rng.choice(names)), "here") for _ in range(n)]
        return Relate(labels=names), found, gold
    if kind == "labels":
        sets = [[label for label in "abcd" if rng.random() < 0.3] for _ in range(2 * n)]
        found = [LabelSetPrediction(labels, {}) for labels in sets[n:]]
        return MultiLabel(labels=(*"abcd",)), found, [LabelSetExample("x", None, (*s,), "here") for s in sets[:n]]
    sizes = rng.integers(1, 6, n)
    gold, guessed = ([[str(tag) for tag in rng.choice(TAGS, size)] for size in sizes] for _ in range(2))
    found = [TagPrediction(["w"] * len(tags), tags, []) for tags in guessed]
    return Tag(labels=TAGS), found, [TaggedSentence(["w"] * len(tags), tags, "here") for tags in gold]


KINDS = (
    "two classes",
    "three classes",
    "choose",
    "regress",
    "span",
    "span with unanswerable questions",
    "tag",
    "relate",
)
KINDS += ("labels", "ordinal")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000))
def test_sums_give_the_scores_of_all_examples_and_of_a_sample(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    task, found, examples = made(kind, rng, 12)
    chosen = rng.integers(0, 12, 12)
    if kind == "span with unanswerable questions":
        chosen[0] = 11  # the last question has no answer: the rules of SQuAD 2.0 apply to the sample, too
    sample = [found[i] for i in chosen], [examples[i] for i in chosen]
    if kind.startswith("span"):  # a question may occur only once in a file: give the copies ids of their own
        sample = [[replace(each, id=str(n)) for n, each in enumerate(side)] for side in sample]
    sums, scores, of_sample = task.sums(found, examples), task.score(found, examples), task.score(*sample)
    assert sums.keys() == {name for name in scores if "_answer_" not in name}
    for name, (formula, rows) in sums.items():
        assert FORMULAS[formula](rows.sum(0, keepdims=True))[0] == pytest.approx(scores[name], abs=1e-9)
        # A bootstrap uses the ranks, and the relations that are gold, of all examples.
        if name != "spearman" and (kind, name) != ("relate", "macro_f1"):
            value = FORMULAS[formula](rows[chosen].sum(0, keepdims=True))[0]
            assert value == pytest.approx(of_sample[name], abs=1e-9)


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_a_sample_of_equal_numbers_has_no_correlation(metric: str) -> None:
    rng = np.random.default_rng(0)
    gold = [0.1 * int(i) for i in rng.integers(0, 4, 50)]
    examples, found = [text(str(x)) for x in gold], [NumberPrediction(x) for x in rng.normal(size=50)]
    for predictions in (found, [NumberPrediction(0.1 * 3)] * 49 + [NumberPrediction(0.3)]):
        sums = Regress().sums(predictions, examples)
        formula, rows = sums[metric]
        counts = np.array([gold == np.float64(value) for value in sorted(set(gold))], np.float32)
        assert FORMULAS[formula](counts @ rows).tolist() == [0.0] * len(counts)
    assert FORMULAS[formula](rows.sum(0, keepdims=True))[0] == Regress().score(predictions, examples)[metric] == 0
