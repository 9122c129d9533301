"""Similarities of the two texts of each pair, from a file of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from bertie.errors import UserError
from bertie.model.layer_selection import Fixed
from bertie.model.pooling import Pooling
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import cosines
from bertie.tasks.data.texts import Example
from bertie.tasks.inference import SEQUENCES_AT_ONCE


def pair_similarities(
    model: Predictor, pairs: Iterable[Example | UserError], pooling: Pooling | None = None, layers: Fixed = "last"
) -> Iterator[float | UserError]:
    """Yield the cosine of the vectors of each pair of texts, lazily and in order.

    Args:
        model: The model.
        pairs: Pairs, as a `TextReader` yields them. A `UserError` among them is yielded in its place.
        pooling: As in `Predictor.embed`.
        layers: As in `Predictor.embed`.
    """
    remaining = iter(pairs)
    while part := list(islice(remaining, SEQUENCES_AT_ONCE)):
        given = [pair for pair in part if not isinstance(pair, UserError)]
        texts = [pair.text for pair in given] + [pair.text_pair or "" for pair in given]
        first, second = np.split(model.embed(texts, pooling, layers), 2)
        found = iter([float(cosines(a[None], b[None])[0, 0]) for a, b in zip(first, second, strict=True)])
        yield from (pair if isinstance(pair, UserError) else next(found) for pair in part)
