from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.tasks.example_sums import class_sums, number_sums, scores
from bertie.tasks.metrics import confusion, mean_and_interval, precision_recall_f1, sign


def classification_scores(gold: list[str], predicted: list[str], labels: list[str]) -> dict[str, float]:
    return scores(class_sums(gold, predicted, labels))


def test_errors_and_losses_are_better_when_lower() -> None:
    assert [sign(name) for name in ("accuracy", "mse", "mean_error", "dev_loss", "error_free")] == [1, -1, -1, -1, 1]


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
    measures = precision_recall_f1(np.diag(counts), counts.sum(1), counts.sum(0))
    for found, wanted in zip((*measures, counts.sum(1)), expected, strict=True):
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
        found = scores(number_sums(gold, predicted))
        assert (found["pearson"], found["spearman"]) == (0, 0)
        assert found["mse"] == pytest.approx(np.mean(np.subtract(gold, predicted) ** 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-15, 1.0, 1e15])
def test_numbers_that_hardly_differ_are_correlated(scale: float):
    gold = [scale * (1 + 1e-6 * i) for i in range(6)]  # float32 rounding is smaller than these differences
    found = scores(number_sums(gold, [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]))
    assert (found["pearson"], found["spearman"]) == (pytest.approx(1), pytest.approx(1))


def test_interval_matches_a_hand_calculation():
    values = [0.8, 0.82, 0.84]
    mean, half = mean_and_interval(values)
    assert mean == pytest.approx(0.82)
    assert half == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)  # t of 2 degrees of freedom, from a table


def test_one_value_has_no_interval():
    mean, half = mean_and_interval([0.5])
    assert mean == 0.5
    assert math.isnan(half)
