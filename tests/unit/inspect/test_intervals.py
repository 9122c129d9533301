"""Resampling of sentences and documents."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertie.inspect import intervals
from bertie.inspect.intervals import SAMPLES, UnitSums, in_report_half, interval, ratio, resample


def test_terms_are_added_up_per_unit() -> None:
    sums = UnitSums.of(np.array([4, 1, 4]), np.array([[1.0, 1], [0, 1], [3, 1]]))
    assert sums.units.tolist() == [1, 4]
    assert sums.sums.tolist() == [[0, 1], [4, 2]]


def test_samples_draw_whole_units_and_the_parts_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    """All words of a unit come together: with 1 and 10 words, a sample of two units has 2, 11 or 20 words."""
    first = UnitSums(np.array([0, 1]), np.array([[1.0], [10.0]]))
    second = UnitSums(np.array([1]), np.array([[100.0, 0.0]]))
    a, b = resample(2, [first, second])
    assert (a.shape, b.shape) == ((1 + SAMPLES, 1), (1 + SAMPLES, 2))
    assert (a[0], b[0].tolist()) == (11, [100, 0])  # without resampling
    assert sorted(set(a[1:, 0])) == [2, 11, 20]
    assert 0.4 < np.mean(a[1:, 0] == 11) < 0.6
    np.testing.assert_array_equal(b[:, 0], 100 * (a[:, 0] - 2) / 9)
    monkeypatch.setattr(intervals, "_COUNTS_AT_ONCE", 14)
    np.testing.assert_array_equal(resample(2, [first, second])[0], a)


def test_an_interval_of_independent_words_is_that_of_a_proportion() -> None:
    right = np.arange(400) % 4 == 0
    sums = UnitSums.of(np.arange(400), np.stack([right, np.ones(400)], 1))
    samples = resample(400, [sums])[0][1:]
    low, high = interval(ratio(samples[:, 0], samples[:, 1]))
    half_width = 1.96 * math.sqrt(0.25 * 0.75 / 400)
    assert low == pytest.approx(0.25 - half_width, abs=0.006)
    assert high == pytest.approx(0.25 + half_width, abs=0.006)


def test_samples_without_data_are_ignored_and_no_data_has_no_interval() -> None:
    values = ratio(np.array([0.0, 1.0, 3.0]), np.array([0.0, 2.0, 3.0]))
    assert np.isnan(values[0])
    assert interval(values) == pytest.approx((0.5 + 0.5 * 0.025, 1 - 0.5 * 0.025))
    assert np.isnan(interval(np.full(SAMPLES, np.nan))).all()
    assert resample(0, [UnitSums(np.zeros(0, int), np.zeros((0, 2)))])[0].shape == (1 + SAMPLES, 2)


@pytest.mark.parametrize("units", [0, 1, 2, 11])
def test_the_halves_are_the_same_every_time(units: int) -> None:
    reported = in_report_half(units)
    assert reported.sum() == units // 2
    np.testing.assert_array_equal(reported, in_report_half(units))
