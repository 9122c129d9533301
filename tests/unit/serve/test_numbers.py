"""The decimals of fp32 numbers in answers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from bertie.serve.limits import Refused
from bertie.serve.numbers import json_numbers, shortest


def digits(text: str) -> int:
    return len(text.partition("e")[0].replace(".", "").replace("-", "").strip("0"))


def random_numbers(count: int) -> np.ndarray:
    """Random bits: all sizes that fp32 has, subnormal ones among them. And numbers of the size of vectors."""
    rng = np.random.default_rng(0)
    anything = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    vectors = (rng.standard_normal(count) * 10.0 ** rng.integers(-4, 2, count)).astype(np.float32)
    return np.concatenate([anything[np.isfinite(anything)], vectors])


def test_numbers_read_back_are_the_same_bits() -> None:
    values = random_numbers(20_000)
    read = np.array(msgspec.json.decode(msgspec.json.encode(json_numbers(values)))).astype(np.float32)
    assert (read.view(np.int32) == values.view(np.int32)).all()


def test_numbers_have_as_few_digits_as_fp32_needs() -> None:
    values = random_numbers(5_000)
    for number, value in zip(shortest(values).tolist(), values, strict=True):
        assert digits(repr(number)) == digits(np.format_float_scientific(value)), value


def test_special_numbers() -> None:
    values = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1e-4, 1e-5, 99999992.0, 1e10, 2.0**-126, 2.0**24, 3.4028235e38, 1e-45]
    found = shortest(np.array(values, np.float32))
    assert [repr(each) for each in found.tolist()] == [repr(float(str(np.float32(each)))) for each in values]
    for shape in ((0,), (0, 4), (2, 3, 4)):
        assert shortest(np.ones(shape, np.float32)).shape == shape


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_no_answer(value: float) -> None:
    with pytest.raises(Refused, match="NaN or infinity") as refused:
        json_numbers(np.array([1.0, value], np.float32))
    assert (refused.value.status, refused.value.reason) == (500, "engine")
