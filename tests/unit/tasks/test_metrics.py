from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.tasks.metrics import (
    class_scores,
    classification_scores,
    confusion,
    difference,
    mean_and_interval,
    regression_scores,
    standard_error,
)


def test_scores_of_two_classes_match_a_hand_calculation():
    gold, predicted = ["1", "1", "1", "0", "0"], ["1", "1", "0", "1", "0"]  # tp 2, fn 1, fp 1, tn 1
    scores = classification_scores(gold, predicted, ["0", "1"])
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["f1"] == pytest.approx(2 / 3)
    assert scores["matthews"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))


def test_f1_is_of_the_second_of_two_labels_or_the_mean_over_labels():
    gold, predicted = ["a", "a", "b", "c"], ["a", "b", "b", "b"]
    assert classification_scores(gold, predicted, ["a", "b", "c"])["f1"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert classification_scores(["b", "a"], ["a", "a"], ["b", "a"])["f1"] == pytest.approx(2 / 3)


def test_a_class_never_predicted_counts_as_zero_without_a_warning():
    scores = classification_scores(["0", "0", "1"], ["0", "0", "0"], ["0", "1"])
    assert scores == {"accuracy": pytest.approx(2 / 3), "f1": 0.0, "matthews": 0.0}
    alone = classification_scores(["0"], ["0"], ["0", "1"])
    assert (alone["accuracy"], alone["f1"], alone["matthews"]) == (1.0, 0.0, 0.0)


def test_f1_leaves_out_a_class_that_is_neither_gold_nor_predicted():
    gold = ["a", "b", "a", "b"]
    assert classification_scores(gold, gold, ["a", "b", "c"]) == {"accuracy": 1.0, "f1": 1.0, "matthews": 1.0}
    predicted = ["a", "b", "c", "b"]  # a class that no example has, but that is predicted, has f1 0
    assert classification_scores(gold, predicted, ["a", "b", "c"])["f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert classification_scores(["a"], ["a"], ["c", "d", "b"])["f1"] == 0  # nothing is left


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30))
def test_scores_agree_with_the_confusion_matrix(pairs: list[tuple[str, str]]):
    gold, predicted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    scores = classification_scores(gold, predicted, ["a", "b", "c"])
    table = np.zeros((3, 3))
    np.add.at(table, (["abc".index(g) for g in gold], ["abc".index(p) for p in predicted]), 1)
    assert scores["accuracy"] == pytest.approx(np.trace(table) / len(pairs))
    occur = [i for i in range(3) if table[i].sum() + table[:, i].sum()]
    f1 = [2 * table[i, i] / (table[i].sum() + table[:, i].sum()) for i in occur]
    assert scores["f1"] == pytest.approx(np.mean(f1))
    assert -1 <= scores["matthews"] <= 1


@pytest.mark.filterwarnings("ignore::UserWarning")  # scikit-learn's about a single class
@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), min_size=1, max_size=30),
    st.sampled_from([["a", "b", "c", "d"], ["d", "b"], ["a", "b", "c", "d", "unused"]]),
)
def test_scores_are_bit_for_bit_those_of_scikit_learn(pairs: list[tuple[str, str]], labels: list[str]):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef, precision_recall_fscore_support

    gold, predicted = ([pair[side] for pair in pairs if {*pair} <= {*labels}] or [labels[0]] for side in (0, 1))
    scored = labels[1:] if len(labels) == 2 else [label for label in labels if label in {*gold, *predicted}]
    assert classification_scores(gold, predicted, labels) == {
        "accuracy": accuracy_score(gold, predicted),
        "f1": f1_score(gold, predicted, labels=scored, average="macro", zero_division=0),  # pyright: ignore
        "matthews": matthews_corrcoef(gold, predicted),
    }
    expected = precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)  # pyright: ignore
    counts = confusion(gold, predicted, labels)
    for found, wanted in zip((*class_scores(counts), counts.sum(1)), expected, strict=True):
        np.testing.assert_array_equal(found, np.asarray(wanted))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "constant",
    [[1.0] * 6, [1.0] * 5 + [1.0000000000000002], [-1e15] * 5 + [-1e15 - 0.125], [0.0] * 6, [3.0] * 5 + [3 + 1e-11]],
)
def test_numbers_that_are_constant_up_to_rounding_have_no_correlation(constant: list[float]):
    """Their correlation would measure rounding errors only."""
    others = [0.5, 0.3, 0.1, 0.4, 0.2, 0.0]
    for gold, predicted in ((constant, others), (others, constant)):
        scores = regression_scores(gold, predicted)
        assert (scores["pearson"], scores["spearman"]) == (0, 0)
        assert scores["mse"] == pytest.approx(np.mean(np.subtract(gold, predicted) ** 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_numbers_that_hardly_differ_are_correlated(scale: float):
    gold = [scale * (1 + 1e-6 * i) for i in range(6)]  # float32 rounding is smaller than these differences
    scores = regression_scores(gold, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    assert (scores["pearson"], scores["spearman"]) == (pytest.approx(1), pytest.approx(1))


def test_interval_matches_a_hand_calculation():
    values = [0.8, 0.82, 0.84]
    mean, half = mean_and_interval(values)
    assert mean == pytest.approx(0.82)
    assert standard_error(values) == pytest.approx(0.02 / math.sqrt(3))
    assert half == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)  # t of 2 degrees of freedom, from a table


def test_one_value_has_no_interval():
    mean, half = mean_and_interval([0.5])
    assert mean == 0.5
    assert math.isnan(standard_error([0.5]))
    assert math.isnan(half)


def test_interval_covers_the_mean_in_95_percent_of_samples():
    rng = np.random.default_rng(0)
    covered = 0
    for sample in rng.normal(3.0, 2.0, size=(2000, 4)):
        mean, half = mean_and_interval(sample.tolist())
        covered += abs(mean - 3.0) <= half
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)  # three standard errors


def test_difference_of_means_and_its_standard_error():
    a, b = [0.9, 0.8, 0.85], [0.5, 0.7]
    gap, error = difference(a, b)
    assert gap == pytest.approx(0.25)
    assert error == pytest.approx(math.sqrt(np.var(a, ddof=1) / 3 + np.var(b, ddof=1) / 2))
    assert difference(b, a) == pytest.approx((-gap, error))
