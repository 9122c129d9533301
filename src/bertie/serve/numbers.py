"""Numbers for JSON, as short as fp32 needs: of the 17 digits that Python shows of an fp32 number, 6 to 9 say all."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np

from bertie.serve.limits import Refused

DIGITS = 8  # that most numbers need
EXACT = 22  # powers of ten up to which fp64 is exact
_POWERS = 10.0 ** np.arange(EXACT + 1)


def json_numbers(values: np.ndarray) -> Any:
    """Return fp32 numbers as lists of numbers of Python, each with the fewest digits that give the fp32 number back.

    Raises:
        Refused: A number is NaN or infinity; status 500. The outputs of a model are finite, but not all that is computed
            from very large ones is.
    """
    if not np.isfinite(values).all():
        problem = "the answer has NaN or infinity: the outputs of the model are too large to compare"
        raise Refused(500, "engine", problem)
    return shortest(values.astype(np.float32, copy=False)).tolist()


def base64_of(array: np.ndarray) -> str:
    """Return the bytes of an array's numbers, as little-endian float32, in base64."""
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def raw(parts: Iterable[Any]) -> Any:
    """Return the list of some parts, encoded one by one: as objects of Python, all would take several times their memory."""
    return [msgspec.Raw(msgspec.json.encode(part)) for part in parts]


def shortest(values: np.ndarray) -> np.ndarray:
    """Return finite fp32 numbers as fp64 numbers with the shortest decimals that are the same numbers in fp32.

    A number with fewer than 6 digits is the same number with 6 of them, and 9 are always enough.
    """
    exact = values.astype(np.float64)
    sizes = np.abs(exact)
    logarithms = np.log10(sizes, out=np.zeros_like(sizes), where=sizes > 0)
    # Places after the point. Up to 22, digits and power of ten are exact, so their quotient is the nearest fp64 number.
    places = DIGITS - 1 - np.floor(logarithms + 1e-9).astype(np.int64)
    odd = (places < 2) | (places >= EXACT)
    places[odd] = 2
    rounded = _rounded(exact, places)
    same = rounded.astype(np.float32) == values
    flat, exact, places, original = (array.reshape(-1) for array in (rounded, exact, places, values))
    longer, shorter = np.flatnonzero(~same), np.flatnonzero(same)
    flat[longer] = _rounded(exact[longer], places[longer] + 1)
    for fewer in (1, 2):
        numbers = _rounded(exact[shorter], places[shorter] - fewer)
        same = numbers.astype(np.float32) == original[shorter]
        shorter = shorter[same]
        flat[shorter] = numbers[same]
    rounded[odd] = [float(np.format_float_scientific(value)) for value in values[odd]]
    return rounded


def _rounded(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Round each number to its places after the point."""
    powers = _POWERS[places]
    return np.rint(numbers * powers) / powers
