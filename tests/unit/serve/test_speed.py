"""How the time of batches is learned from batches."""

from __future__ import annotations

import numpy as np
import pytest

from bertie.serve.speed import BatchSpeed


def taught(*batches: tuple[int, float]) -> BatchSpeed:
    found = BatchSpeed()
    for tokens, seconds in batches:
        found.count(tokens, seconds)
    return found


def line(tokens: int) -> float:
    return 0.004 + tokens / 8000


def test_nothing_is_predicted_before_the_first_batch() -> None:
    assert BatchSpeed().batch(4000) == BatchSpeed().seconds(10**6, 4000) == 0


def test_one_size_tells_the_rate_alone() -> None:
    found = taught((100, 0.5), (100, 0.5))
    assert found.batch(1000) == pytest.approx(5)
    assert found.within(5) == pytest.approx(1000, abs=1)


def test_overhead_and_rate_are_learned_from_batches_of_many_sizes() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 4096, 200).tolist()
    found = taught(*((size, line(size) * noise) for size, noise in zip(sizes, rng.lognormal(0, 0.1, 200), strict=True)))
    for tokens in (500, 1000, 4000):
        assert found.batch(tokens) == pytest.approx(line(tokens), rel=0.1)
    assert found.seconds(10_000, 4000) == pytest.approx(3 * 0.004 + 10_000 / 8000, rel=0.1)
    assert found.within(line(2000)) == pytest.approx(2000, rel=0.1)


def test_a_thousand_short_queries_do_not_hide_the_rate() -> None:
    """A batch with one short text takes long for its few tokens."""
    found = taught(*((4000, line(4000)) for _ in range(5)), *((3 + i % 9, line(3 + i % 9)) for i in range(1000)))
    assert found.batch(4000) == pytest.approx(line(4000), rel=0.05)
    assert found.batch(5) == pytest.approx(line(5), rel=0.3)


def test_short_queries_alone_tell_the_overhead() -> None:
    """The rate is known as soon as they differ in length: 2,000 of them take no 2,000 times as long."""
    found = taught((128, line(128)), *((3 + i % 9, line(3 + i % 9)) for i in range(200)))
    assert found.seconds(2000 * 12, 4000) == pytest.approx(7 * 0.004 + 3, rel=0.2)


def test_one_slow_batch_counts_little_and_a_slower_machine_is_noticed() -> None:
    steady = [(size, line(size)) for size in (10, 1000, 4000) * 10]
    before = taught(*steady).batch(4000)
    assert before <= taught(*steady, (4000, 60.0)).batch(4000) <= 1.3 * before
    assert taught(*steady, *[(4000, 3 * line(4000))] * 30).batch(4000) == pytest.approx(3 * before, rel=0.2)


def test_a_batch_without_tokens_teaches_nothing() -> None:
    assert taught((100, 1.0), (0, 5.0)).batch(100) == 1
    assert taught((0, 5.0)).batch(100) == 0


def test_no_batch_takes_less_than_nothing() -> None:
    found = taught((2000, 1.0), (100, 2.0))
    assert 0 <= found.batch(1) <= found.batch(4000)
    assert taught((100, 0.1), (4000, 40.0)).batch(1) >= 0
    assert taught((10, 1.0), (1000, 1.5)).within(0.5) == 0
