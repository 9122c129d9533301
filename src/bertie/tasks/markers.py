"""Markers: tokens that say in a text where its two spans are, or stand for them.

markers   The [E1] author [/E1] of a keygen uses a [E2] disassembler [/E2] .       (Soares et al. 2019)
typed     [E1:PERSON] Ada [/E1:PERSON] left [E2:CITY] London [/E2:CITY] .
masked    [E1:PERSON] left [E2:CITY] .                                             (SpanBERT on TACRED)
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from bertie.base.errors import UserError
from bertie.examples.marked_texts import RelationExample

MarkerForm = Literal["markers", "typed", "masked"]
BLANK = " "  # a line break may be a token, and stays


def marker_names(form: MarkerForm, example: RelationExample) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the markers of the first span, and of the second one: the opening one, then the closing one."""
    names = []
    for side, kind in (("E1", example.first_type), ("E2", example.second_type)):
        name = side if form == "markers" else f"{side}:{kind}"
        names.append((name,) if form == "masked" else (name, f"/{name}"))
    return names[0], names[1]


def marked_text(form: MarkerForm, markers: dict[str, str], example: RelationExample) -> str:
    """Return the text with its markers, between spaces.

    Args:
        form: The form of the markers.
        markers: The token of each marker, by its name.
        example: The example.

    Raises:
        UserError: A type of a span has no marker, or the spans are not in the text, or overlap.
    """
    text, parts, at = example.text, [], 0
    spans = sorted(zip((example.first, example.second), marker_names(form, example), strict=True))
    for (start, end), names in spans:
        if not at <= start < end <= len(text):
            raise UserError(f"{example.source}: a span is empty, overlaps the other one, or is not in the text")
        if unknown := [name for name in names if name not in markers]:
            raise UserError(f"{example.source}: no marker for {unknown[0]!r}: no training example has this type")
        tokens = [markers[name] for name in names]
        parts += [
            text[at:start].strip(BLANK),
            tokens[0],
            *([text[start:end].strip(BLANK), tokens[1]] if len(tokens) > 1 else []),
        ]
        at = end
    return " ".join(part for part in [*parts, text[at:].strip(BLANK)] if part)


def kept_tokens(markers: np.ndarray, size: int, most: int) -> np.ndarray:
    """Return which tokens of a text remain in a sequence: sorted indices, int64 [at most `most`].

    The tokens from the first marker to the last one remain, with those nearest to them on both sides. If these are already too
    many, the tokens nearest to any marker remain.

    Args:
        markers: int64, sorted indices of the markers, at most `most`.
        size: Number of tokens of the text.
        most: Number of tokens that fit.
    """
    if size <= most:
        return np.arange(size)
    distance = np.abs(np.arange(size)[:, None] - markers).min(1)
    if markers[-1] - markers[0] < most:
        distance[markers[0] : markers[-1] + 1] = 0
    return np.sort(np.argsort(distance, kind="stable")[:most])
