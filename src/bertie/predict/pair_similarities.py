"""Compare pairs of texts by their vectors; in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from bertie.base.errors import UserError
from bertie.examples.texts import Example
from bertie.predict.embed import TextUnit
from bertie.predict.predictor import Predictor
from bertie.predict.vectors import paired_similarities
from bertie.tasks.inference import SEQUENCES_AT_ONCE
from bertie.tasks.predictions import rounded


def pair_similarities(
    model: Predictor,
    pairs: Iterable[Example | UserError],
    unit: TextUnit = TextUnit(),
) -> Iterator[float | UserError]:
    """Yield the similarity (`Predictor.similarity`) of the vectors of each pair of texts, lazily and in order.

    Args:
        model: The model.
        pairs: Pairs, as a `Reader` yields them. A `UserError` among them is yielded in its place.
        unit: How to pool the vectors, and the prompt of the texts.
    """
    remaining = iter(pairs)
    while part := list(islice(remaining, SEQUENCES_AT_ONCE)):
        readable = [pair for pair in part if not isinstance(pair, UserError)]
        texts = [pair.text for pair in readable] + [pair.text_pair or "" for pair in readable]
        vectors = np.split(model.embed(texts, unit.pooling, unit.layers, unit.prompt_name), 2)
        scores = iter(rounded(paired_similarities(model.text_embedding.similarity, *vectors).tolist()))
        yield from (pair if isinstance(pair, UserError) else next(scores) for pair in part)
