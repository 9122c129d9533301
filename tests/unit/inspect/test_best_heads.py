"""The best of many heads."""

from __future__ import annotations

import numpy as np
import pytest

from bertie.inspect.heads import best_heads
from bertie.inspect.heads.best_heads import Answers, best_table, find_best
from bertie.inspect.intervals import in_report_half

UNITS, PER_UNIT = 40, 3


def answers_of(
    right: np.ndarray, baselines: np.ndarray, layers: int, groups: dict[str, list[int]] | None = None
) -> Answers:
    """Answers to 3 questions per unit. right: [questions, layers × P]."""
    unit = np.repeat(np.arange(len(right) // PER_UNIT), PER_UNIT)
    groups = {"all": list(range(len(unit)))} if groups is None else groups
    per_layer = right.shape[1] // layers
    answers = Answers.prepare(unit, len(right) // PER_UNIT, baselines, groups, right.shape[1])
    for layer in range(layers):
        answers.record(layer, np.arange(len(unit)), right[:, layer * per_layer :][:, :per_layer])
    return answers


def test_answers_are_recorded_layer_by_layer_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = np.random.default_rng(0).random((UNITS * PER_UNIT, 6)) < 0.4
    answers = answers_of(right, right[:, :1], 2)
    both = np.hstack([right, right[:, :1]])  # heads, and a baseline that is right where the first head is
    np.testing.assert_array_equal(answers.right, both)
    monkeypatch.setattr(best_heads, "_ANSWERS_AT_ONCE", 50)
    some = np.array([5, 0, 77, *range(20, 60)])
    np.testing.assert_array_equal(answers.count(some), both[some].sum(0))


def test_blocks_are_joined() -> None:
    right = np.random.default_rng(1).random((UNITS * PER_UNIT, 10)) < 0.4
    base = right[:, 3:5]
    groups = {"b": [0, 5], "a": [*range(len(right))], "c": [100]}
    whole = answers_of(right, base, 2, {name: groups[name] for name in "abc"})
    cut = 30
    parts = [
        answers_of(right[:cut], base[:cut], 2, {"b": [0, 5], "a": [*range(cut)]}),
        answers_of(right[:0], base[:0], 2, {}),
        answers_of(right[cut:], base[cut:], 2, {"c": [100 - cut], "a": [*range(len(right) - cut)]}),
    ]
    joined = Answers.join(parts)
    assert list(joined.groups) == ["a", "b", "c"]
    assert joined.units == whole.units
    assert joined.heads == whole.heads == 10
    np.testing.assert_array_equal(joined.unit, whole.unit)
    np.testing.assert_array_equal(joined.right, whole.right)
    for name, numbers in whole.groups.items():
        np.testing.assert_array_equal(joined.groups[name], numbers)
    assert find_best(joined) == find_best(whole)


def test_the_held_out_accuracy_is_measured_where_the_head_was_not_chosen() -> None:
    """Head 4 is right exactly where it is chosen. Head 1 is right in 2 of 3 questions everywhere."""
    questions = UNITS * PER_UNIT
    reported = np.repeat(in_report_half(UNITS), PER_UNIT)
    right, base = np.zeros((questions, 6), bool), np.zeros((questions, 2), bool)
    right[:, 4] = ~reported
    right[:, 1] = np.arange(questions) % PER_UNIT > 0
    base[:, 1] = np.arange(questions) % PER_UNIT == 0
    best = find_best(answers_of(right, base, 2))
    everywhere, held_out = best["all", False], best["all", True]
    assert everywhere.head == 1
    assert everywhere.questions == questions
    assert [everywhere.columns[name] for name in ("accuracy", "low", "high")] == [2 / 3] * 3
    assert (everywhere.baseline, everywhere.columns["baseline"]) == (1, 1 / 3)
    assert everywhere.columns["gain"] == pytest.approx(1 / 3)
    assert held_out.head == 4
    assert held_out.questions == questions / 2
    assert held_out.columns["accuracy"] == 0
    assert held_out.columns["gain"] == pytest.approx(-1 / 3)


def test_the_interval_of_the_gain_is_paired() -> None:
    """Head and baseline are right in the same units, except in unit 0: the gain varies less than either."""
    unit_is_right = np.random.default_rng(2).random(UNITS) < 0.5
    unit_is_right[0] = True
    base = np.repeat(unit_is_right, PER_UNIT)[:, None]
    right = base.copy()
    base = base & (np.arange(UNITS * PER_UNIT) >= PER_UNIT)[:, None]
    best = find_best(answers_of(right, base, 1))["all", False].columns
    assert best["gain"] == pytest.approx(1 / UNITS)
    assert best["high"] - best["low"] > 0.25
    assert best["gain_low"] == 0
    assert best["gain_high"] <= 4 / UNITS


def test_a_group_in_one_unit_has_no_interval_and_no_held_out_accuracy() -> None:
    right = np.ones((UNITS * PER_UNIT, 1), bool)
    answers = answers_of(right, ~right, 1, {"rare": [0, 1]})
    meaning = {"group": "g", "questions": "q", "head": "h"}

    def describe(head: int, _: int) -> dict[str, int | str]:
        return {"head": head}

    found = best_table("best", answers, meaning, describe).plain()
    assert (found["group"], found["questions"], found["accuracy"], found["gain"]) == (["rare"], [2], [1], [1])
    assert found["low"] == found["high"] == found["gain_low"] == [None]
    assert [found[name] for name in found if name.startswith("held_out_")] == [[None]] * 9
    empty = best_table("best", answers_of(right[:0], right[:0], 1, {}), meaning, describe)
    assert set(map(len, empty.plain().values())) == {0}
