from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bertie.lab.bootstrap import SAMPLES, estimate, resampled_scores


def rows(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones_like(values)], 1)


def scores(*values: np.ndarray) -> np.ndarray:
    return np.stack([resampled_scores("mean", rows(each), 0) for each in values], 1)


def test_the_interval_of_a_mean_has_the_width_of_theory() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, 400)
    found = estimate(([float(values.mean())], scores(values)))
    assert found.low is not None
    assert found.high is not None
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_the_same_predictions_do_not_differ() -> None:
    hits = np.random.default_rng(0).random(300) < 0.7
    same = scores(hits.astype(float))
    found = estimate(([0.7], same), ([0.7], same))
    assert (found.value, found.low, found.high) == (0, 0, 0)
    assert not found.significant


def test_examples_are_resampled_together() -> None:
    """Two models that differ on few examples: the interval is narrower than with independent samples."""
    rng = np.random.default_rng(0)
    hits = (rng.random(500) < 0.6).astype(float)
    better = hits.copy()
    better[rng.choice(np.flatnonzero(hits == 0), 15, replace=False)] = 1
    found = estimate(([better.mean()], scores(better)), ([hits.mean()], scores(hits)))
    assert found.low is not None
    assert found.high is not None
    assert found.significant
    assert found.value == pytest.approx(15 / 500)
    assert found.high - found.low == pytest.approx(2 * 1.96 * np.sqrt(0.03 * 0.97 / 500), rel=0.15)


def test_the_interval_of_a_mean_over_seeds_is_that_of_the_t_distribution() -> None:
    values = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    found, expected = estimate((values, None)), stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(expected, abs=0.01)


def test_the_interval_of_a_difference_over_seeds_is_that_of_the_t_distribution() -> None:
    a, b = [0.1, 0.25, 0.3], [0.5, 0.55, 0.65]
    found, expected = estimate((a, None), (b, None)), stats.ttest_ind(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(expected, abs=0.01)


def test_a_side_with_one_run_has_the_variation_of_the_other() -> None:
    """If runs have failed, the remaining one is not taken for certain."""
    found = estimate(([0.5], None), ([0.1, 0.2, 0.3], None))
    assert (found.low, found.high) == pytest.approx((0.3 - 0.497, 0.3 + 0.497), abs=0.01)  # 4.303 × 0.1 × √(1 + 1/3)


@pytest.mark.parametrize(
    ("seeds", "spread"),
    [
        (2, 0.2),
        (5, 0.0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 0.0), (3, 0.0), (3, 0.2), (5, 0.2))),
    ],
)
def test_few_seeds_give_no_more_false_alarms_than_many(seeds: int, spread: float) -> None:
    """Without a difference, at most about one interval in twenty excludes 0, whether examples or seeds vary more."""
    rng = np.random.default_rng(seeds)
    false_alarms = losses = 0
    for _ in range(200):
        difficulty = rng.normal(size=200)
        sides = [
            [(difficulty + spread * rng.normal() + 0.5 * rng.normal(size=200) > 0).astype(float) for _ in range(seeds)]
            for _ in range(2)
        ]
        means = [[float(run.mean()) for run in runs] for runs in sides]
        false_alarms += estimate(*((mean, scores(*runs)) for mean, runs in zip(means, sides, strict=True))).significant
        losses += estimate(*((each, None) for each in rng.normal(size=(2, seeds)).tolist())).significant
    assert false_alarms <= 18
    assert 2 <= losses <= 18


def test_one_seed_without_examples_has_no_interval() -> None:
    found = estimate(([0.5], None), ([0.4], None))
    assert (found.low, found.high, found.significant) == (None, None, False)
    assert found.value == pytest.approx(0.1)


def test_samples_are_the_same_in_every_process() -> None:
    values = np.arange(50.0)
    first = resampled_scores("mean", rows(values), 3)
    assert first.shape == (SAMPLES,)
    assert np.array_equal(first, resampled_scores("mean", rows(values), 3))
    assert not np.array_equal(first, resampled_scores("mean", rows(values), 4))
