"""Results of texts of which some are refused: the others are computed, and a warning names the refused ones."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from bertie import console
from bertie.errors import UserError
from bertie.tasks.data.rows import first_few


def with_nan(results: Iterable[float | UserError]) -> np.ndarray:
    """Return numbers as float64, with NaN in place of errors, and warn about these.

    Raises:
        UserError: Every result is an error. It is the first one.
    """
    values: list[float] = []
    errors: list[UserError] = []
    for result in results:
        if isinstance(result, UserError):
            errors.append(result)
        values.append(math.nan if isinstance(result, UserError) else result)
    if errors and len(errors) == len(values):
        raise errors[0]
    if errors:
        console.warn(f"{len(errors):,} of {len(values):,} are NaN: {first_few(map(str, errors), len(errors))}")
    return np.array(values, np.float64)
