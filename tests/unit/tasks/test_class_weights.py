"""Weights of classes: their values by the formulas of scikit-learn and torch, the losses, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertie.base import config
from bertie.base.contracts import Sequence, Targets
from bertie.base.errors import UsageError, UserError
from bertie.commands.parser import parse
from bertie.examples.conll import TaggedSentence
from bertie.examples.label_sets import LabelSetExample
from bertie.examples.texts import Example
from bertie.finetuning.recipe import FinetuneConfig
from bertie.model.losses.losses import binary_cross_entropy, cross_entropy
from bertie.tasks import Classify, MultiLabel, Tag
from bertie.tasks.task_json import task_from_json, to_task_json

GOLD = ["a", "b", "a", "c", "a", "b"]
BALANCED = {"a": 6 / (3 * 3), "b": 6 / (3 * 2), "c": 6 / (3 * 1)}


def texts(gold: list[str]) -> list[Example]:
    return [Example("text", None, label, f"here:{number}") for number, label in enumerate(gold)]


def sets(*gold: str) -> list[LabelSetExample]:
    return [LabelSetExample("text", None, tuple(labels), f"here:{number}") for number, labels in enumerate(gold)]


def sentences(gold: list[str]) -> list[TaggedSentence]:
    return [TaggedSentence(["word"] * 3, gold[start : start + 3], f"here:{start}") for start in range(0, len(gold), 3)]


def numbers(targets: Targets) -> Targets:
    arrays = (targets.index, targets.label, targets.weight)
    return Targets(*map(torch.from_numpy, arrays))


def mean(loss: Any) -> float:
    return float(loss.total / loss.count)


def sequence(target: Any, weight: float = 1.0) -> Sequence:
    ids = np.zeros(4, np.int32)
    return Sequence(ids, ids, np.ones(4, bool), target=target, weight=weight)


@pytest.mark.parametrize(("task", "examples"), [(Classify(), texts(GOLD)), (Tag(), sentences(GOLD))])
def test_balanced_weights_are_those_of_scikit_learn(task: Any, examples: Any) -> None:
    from sklearn.utils.class_weight import compute_class_weight

    fitted = replace(task, class_weights="balanced").fit(examples)
    expected = compute_class_weight("balanced", classes=np.array(["a", "b", "c"]), y=GOLD)
    assert fitted.class_weights == pytest.approx(dict(zip("abc", expected.tolist(), strict=True)))
    assert fitted.class_weights == pytest.approx(BALANCED)
    assert task.fit(examples).class_weights == "none"


def test_the_loss_of_a_class_is_weighted_as_in_torch() -> None:
    task = Classify(class_weights="balanced").fit(texts(GOLD))
    weights = torch.tensor(list(BALANCED.values()), dtype=torch.float32)
    logits, gold = torch.randn(6, 3, generator=torch.manual_seed(0)), torch.tensor([0, 1, 0, 2, 0, 1])
    sequences = [sequence(int(label)) for label in gold]
    weighted = cross_entropy(logits, numbers(task.targets(None, sequences, np.arange(6))))  # type: ignore
    assert mean(weighted) == pytest.approx(float(F.cross_entropy(logits, gold, weight=weights)), rel=1e-6)
    plain = Classify().fit(texts(GOLD))
    unweighted = cross_entropy(logits, numbers(plain.targets(None, sequences, np.arange(6))))  # type: ignore
    assert mean(unweighted) == pytest.approx(float(F.cross_entropy(logits, gold)), rel=1e-6)
    halves = [sequence(sequences[0].target, 0.5), sequence(sequences[0].target, 0.5)]  # two windows of one text
    assert task.targets(None, halves, np.arange(2)).weight.sum() == pytest.approx(BALANCED["a"])  # type: ignore


def test_words_with_unknown_tags_weigh_nothing() -> None:
    task = Tag(class_weights={"a": 2.0, "b": 0.5, "c": 1.0}).fit(sentences(GOLD))
    target = type("Words", (), {"tags": np.array([0, -1, 1, 2])})
    assert task.targets(None, [sequence(target)], np.arange(4)).weight.tolist() == [2.0, 0.0, 0.5, 1.0]  # type: ignore


def test_positive_examples_of_a_label_are_weighted_as_in_torch() -> None:
    examples = sets("a", "ab", "", "a", "c", "ac")
    task = MultiLabel(class_weights="balanced").fit(examples)
    assert task.class_weights == pytest.approx({"a": 2 / 4, "b": 5 / 1, "c": 4 / 2})  # negative by positive
    sequences = [sequence(row) for row in task.gold(examples)]
    targets = numbers(task.targets(None, sequences, np.arange(6)))  # type: ignore
    logits = torch.randn(6, 3, generator=torch.manual_seed(0))
    gold = torch.tensor(np.stack([row for row in task.gold(examples) if row is not None]))
    expected = F.binary_cross_entropy_with_logits(logits, gold, pos_weight=torch.tensor([0.5, 5.0, 2.0]))
    found = binary_cross_entropy(logits, targets)
    assert mean(found) == pytest.approx(float(expected), rel=1e-6)
    assert float(found.hits) == pytest.approx(float(((logits > 0) == (gold > 0)).float().mean(1).sum()))


@pytest.mark.parametrize(
    ("task", "examples", "message"),
    [
        (Classify(class_weights={"a": 1.0, "b": 1.0}), texts(GOLD), "has no weight for c"),
        (
            Classify(class_weights=BALANCED | {"d": 1.0}),
            texts(GOLD),
            "a weight for 'd', which is not one of the classes a",
        ),
        (Tag(class_weights=BALANCED | {"a": 0.0}), sentences(GOLD), "the weight of 'a' is 0: give"),
        (MultiLabel(class_weights=BALANCED | {"c": math.inf}), sets("a", "b", "c"), "the weight of 'c' is inf"),
        (Tag(class_weights="balanced", labels=(*"abcd",)), sentences(GOLD), "no training example has 'd'"),
        (MultiLabel(class_weights="balanced"), sets("a", "ab", "a"), "all training examples have 'a'"),
    ],
)
def test_weights_that_do_not_fit_the_classes_are_refused(task: Any, examples: Any, message: str) -> None:
    with pytest.raises((UsageError, UserError), match=rf"task\.class_weights.*{message}"):
        task.fit(examples)


@pytest.mark.parametrize("weights", ["none", "balanced", {"a": 2.0, "b": 1.0, "c": 0.25}])
def test_task_json_keeps_the_weights(weights: Any) -> None:
    task = Classify(class_weights=weights).fit(texts(GOLD))
    assert task_from_json(to_task_json(task, 128, "last", 0), "task.json") == task


def test_weights_are_a_word_or_a_table() -> None:
    def given(*words: str) -> Any:
        argv = ["classify", "--train", "x", "--dev", "y", "--model", "m", "--out", "o", *words]
        return parse("finetune", argv).recipe.task.class_weights

    assert given() == "none"
    assert given("--task.class-weights", "balanced") == "balanced"
    assert given("--task.class-weights", "{a = 2, 'not b' = 0.5}") == {"a": 2.0, "not b": 0.5}
    table = {"extends": "classify", "task": {"class_weights": {"a": 1, "b": 3.5}}}
    assert config.load(FinetuneConfig, table, "finetune").task.class_weights == {"a": 1.0, "b": 3.5}
