"""Multi-label classification: scores, thresholds, training, round trip, files, server, other libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertie
from bertie.base import config as configuration
from bertie.base.contracts import Sequence, Targets
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.read import read_checkpoint
from bertie.examples.label_sets import LabelSetExample
from bertie.finetuning.finetune import finetune
from bertie.finetuning.sweep import split_dev
from bertie.model.config import TransformerConfig
from bertie.model.losses.losses import binary_cross_entropy
from bertie.predict.load import checkpoint_task
from bertie.tasks import MultiLabel
from bertie.tasks.example_sums import scores
from bertie.tasks.label_sets import LabelSetPrediction, label_set_sums, tuned_thresholds
from bertie.tasks.scoring import score
from bertie.tasks.task import build_head

LABELS = ("a", "b", "c", "never")


def label_set_scores(gold: np.ndarray, found: np.ndarray) -> dict[str, float]:
    return scores(label_set_sums(gold, found))


def example(*labels: str, text: str = "x", source: str = "x:1") -> LabelSetExample:
    return LabelSetExample(text, None, labels, source)


def random_sets(seed: int, count: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    gold, found = rng.random((count, 4)) < 0.3, rng.random((count, 4)) < 0.4
    found = np.where(rng.random((count, 4)) < 0.6, gold, found)
    gold[:, 3] = found[:, 3] = False  # a label without examples and predictions
    return gold, found


def named(rows: np.ndarray) -> list[list[str]]:
    return [[label for label, there in zip(LABELS, row, strict=True) if there] for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_scores_equal_those_of_scikit_learn(seed: int) -> None:
    from sklearn.metrics import accuracy_score, f1_score

    gold, found = random_sets(seed)
    averages = {"f1": "micro", "macro_f1": "macro", "sample_f1": "samples"}
    expected = {name: f1_score(gold, found, average=kind, zero_division=np.nan) for name, kind in averages.items()}  # pyright: ignore
    expected["exact_match"] = accuracy_score(gold, found)
    task = MultiLabel(labels=LABELS)
    predictions = [LabelSetPrediction(labels, {}) for labels in named(found)]
    examples = [example(*labels) for labels in named(gold)]
    assert task.score(predictions, examples) == pytest.approx(expected, abs=1e-12)


def test_a_mean_leaves_out_labels_and_examples_without_gold_labels_and_predictions() -> None:
    gold = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]], bool)
    assert set(label_set_scores(gold, gold).values()) == {1.0}
    assert set(label_set_scores(gold & False, gold & False).values()) == {
        0.0,
        1.0,
    }  # the examples are right, nothing is F1
    found = gold.copy()
    found[2, 2] = True  # a label that no example has, but that is predicted
    means = label_set_scores(gold, found)
    assert (means["macro_f1"], means["sample_f1"]) == (pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_constant_predictions_reach_what_no_input_can_tell() -> None:
    task = MultiLabel(labels=LABELS)
    examples = [example("a", "b"), example("a"), example(), example(), example()]
    found = [constants[0].labels for constants in task.constant_predictions(examples)]
    assert found == [[], ["a"], ["a", "b"], []]
    assert task.score(task.constant_predictions(examples)[1], examples)["f1"] == pytest.approx(4 / 8)


def test_a_threshold_has_the_largest_f1_of_its_label() -> None:
    rng = np.random.default_rng(0)
    gold = rng.random((60, 3)) < (0.5, 0.2, 0.03)
    p = np.clip(rng.normal(np.where(gold, 0.4, 0.2), 0.15), 0, 1).round(2)  # some are equal
    found = tuned_thresholds(p, gold)
    for column in (0, 1):
        every = [label_set_scores(gold[:, [column]], p[:, [column]] >= t)["f1"] for t in np.arange(-0.005, 1.01, 0.005)]
        reached = label_set_scores(gold[:, [column]], p[:, [column]] >= found[column])["f1"]
        assert reached == pytest.approx(max(every))
        assert reached > label_set_scores(gold[:, [column]], p[:, [column]] >= 0.5)["f1"]
    assert gold[:, 2].sum() < 5
    assert found[2] == 0.5  # too rare
    assert tuned_thresholds(np.zeros((20, 1)), np.arange(20)[:, None] % 2 == 0) == (0.0,)  # always: F1 2/3 is the best


@pytest.mark.parametrize("weights", ["none", {"p": 3.0, "q": 1.0, "r": 0.5}])
def test_training_begins_with_the_best_constant_prediction(weights: Any) -> None:
    task = MultiLabel(labels=("p", "q", "r"), class_weights=weights)
    factors = np.float32([1, 1, 1] if weights == "none" else [*weights.values()])
    gold = np.float32([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1]] * 50)
    weight = np.float32([0.5, 0.5, 1, 1] * 50)  # as if the first two were windows of one text
    one = np.array([1])
    sequences = [Sequence(one, one, one > 0, target=row, weight=w) for row, w in zip(gold, weight, strict=True)]
    bias = torch.from_numpy(task.initial_bias([*sequences, Sequence(one, one, one > 0)])).requires_grad_()
    targets = Targets(torch.arange(200), torch.from_numpy(gold * factors), torch.from_numpy(weight))
    loss = binary_cross_entropy(bias.expand(200, 3), targets)
    loss.total.backward()
    assert bias.grad is not None
    assert bias.grad.abs().max() < 0.3  # of 150; half an example more keeps rare labels finite
    assert np.isfinite(task.initial_bias(sequences[:1])).all()


def test_fit_refuses_what_cannot_be_learned() -> None:
    unknown = LabelSetExample("x", None, None, "x:2")
    with pytest.raises(UserError, match="x:2: its labels are unknown"):
        MultiLabel().fit([example("a"), unknown])
    with pytest.raises(UserError, match="nothing to learn"):
        MultiLabel().fit([example("a", "b"), example("b", "a")])
    with pytest.raises(UserError, match="nothing to learn"):
        MultiLabel().fit([example(), example()])
    with pytest.raises(UserError, match="'b' is none of the labels"):
        MultiLabel(labels=("a",)).fit([example("a"), example("b")])
    assert MultiLabel().fit([example("b", "a"), example()]).labels == ("a", "b")
    with pytest.raises(UsageError, match="2 numbers for 1 labels"):
        MultiLabel(labels=("a",), thresholds=(0.5, 0.5))


def test_files_of_predictions_are_scored(tmp_path: Path) -> None:
    gold, found = random_sets(5, 20)
    rows = [{"text": "x", "labels": labels} for labels in named(gold)]
    (tmp_path / "gold.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [{"labels": labels, "probabilities": dict.fromkeys(LABELS, 0.5)} for labels in named(found)]
    (tmp_path / "found.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert score("multi_label", tmp_path / "gold.jsonl", tmp_path / "found.jsonl")["scores"] == pytest.approx(
        label_set_scores(gold, found)
    )
    used = gold.any(0) | found.any(0)
    plain = [{"labels": line["labels"]} for line in lines]
    assert score("multi_label", rows, plain)["scores"] == pytest.approx(label_set_scores(gold[:, used], found[:, used]))
    with pytest.raises(UserError, match="'x' is none of the labels"):
        score(MultiLabel(labels=LABELS), rows[:1], [{"labels": ["x"]}])


# A trained model


@pytest.fixture(scope="module")
def rows(small_texts: list[str]) -> list[dict[str, Any]]:
    """The first words are the labels, which may be none."""
    words = {"p": "and", "q": "in", "r": "the"}
    sets = [[label for bit, label in enumerate(words) if i >> bit & 1] for i in range(8)]
    return [
        {"text": " ".join([*(words[label] for label in sets[i % 8]), "."]) + " " + text[:10], "labels": sets[i % 8]}
        for i, text in enumerate(small_texts[:160])
    ]


@pytest.fixture(scope="module")
def trained(pretrained: Path, rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = {
        "extends": "multi_label",
        "max_length": 32,
        "hidden_dropout_prob": 0.0,
        "training": {"epochs": 12, "batch_size": 16, "learning_rate": 2e-3},
    }
    out = tmp_path_factory.mktemp("runs") / "run"
    tuned = finetune(recipe, rows, pretrained, out, dev=rows[:80])
    assert tuned.scores["f1"] > 0.9
    return out


def test_training_tunes_on_one_half_and_scores_on_the_other(trained: Path, rows: list[dict[str, Any]]) -> None:
    predictor = bertie.load(trained, threads=1)
    task = predictor.task
    assert isinstance(task, MultiLabel)
    assert task.labels == ("p", "q", "r")
    found, examples = predictor.predict(rows[:80]), list(task.reader.values(rows[:80], labeled=True))
    selection, report = split_dev(examples)
    assert task.calibrate([found[i] for i in selection], [examples[i] for i in selection]) == task
    scores = task.score([found[i] for i in report], [examples[i] for i in report])
    assert json.loads((trained / "scores.json").read_text()) == pytest.approx(scores)
    assert [] in [each.labels for each in found]
    for each in found:
        reached = [p >= t for p, t in zip(each.probabilities.values(), task.thresholds, strict=True)]
        assert each.labels == [label for label, there in zip(task.labels, reached, strict=True) if there]


def test_the_folder_keeps_task_and_problem_type(trained: Path) -> None:
    values, saved = (json.loads((trained / name).read_text()) for name in ("config.json", "task.json"))
    assert values["problem_type"] == "multi_label_classification"
    assert values["architectures"] == ["BertForSequenceClassification"]
    assert list(values["id2label"].values()) == ["p", "q", "r"]
    assert len(saved["thresholds"]) == 3
    task = checkpoint_task(read_checkpoint(trained))
    assert isinstance(task, MultiLabel)
    assert configuration.plain(task)["thresholds"] == saved["thresholds"]
    for other in (MultiLabel(separator=","), MultiLabel(labels=task.labels)):
        chosen = bertie.load(trained, task=other, threads=1).task
        assert isinstance(chosen, MultiLabel)
        assert (chosen.thresholds, chosen.separator) == (task.thresholds, other.separator)


def test_evaluation_has_a_table_of_labels(trained: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    predictor = bertie.load(trained, threads=1)
    result = predictor.evaluate(rows, out=tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert saved["scores"] == result["scores"]
    assert set(saved["labels"]) == {"p", "q", "r"}
    for row, threshold in zip(saved["labels"].values(), predictor.task.thresholds, strict=True):
        assert set(row) == {"precision", "recall", "f1", "threshold", "support", "found"}
        assert (row["support"], row["threshold"]) == (80, threshold)
    mean = np.mean([row["f1"] for row in saved["labels"].values()])
    assert mean == pytest.approx(result["scores"]["macro_f1"])
    first = json.loads((tmp_path / "out" / "predictions.jsonl").read_text().splitlines()[1])
    assert first["gold"] == ["p"]
    assert list(first["probabilities"]) == ["p", "q", "r"]


def test_a_converted_model_keeps_its_thresholds(trained: Path, tmp_path: Path) -> None:
    from bertie.predict.convert.export import convert

    convert(trained, tmp_path / "hf", "hf")
    assert bertie.load(tmp_path / "hf", threads=1).task == bertie.load(trained, threads=1).task


def test_logits_of_windows_are_averaged() -> None:
    task = MultiLabel(labels=("a", "b"), thresholds=(0.5, 0.9))
    sequence = Sequence(*(np.zeros(1, np.int32) for _ in range(3)), example=0)
    outputs = [np.array([[2.0, 4.0]], np.float32), np.array([[-4.0, 0.0]], np.float32)]
    [found] = task.decode(outputs, [sequence, sequence], [example()])
    assert found.probabilities == pytest.approx({"a": 1 / (1 + np.e), "b": 1 / (1 + np.exp(-2))})
    assert found.labels == []


def test_a_head_without_labels_is_refused(tiny_config: TransformerConfig) -> None:
    with pytest.raises(UsageError, match="no labels yet"):
        build_head(MultiLabel(), tiny_config, tiny_config.hidden_size)
