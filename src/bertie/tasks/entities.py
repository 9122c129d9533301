"""Entities in tagged sentences, counted as the CoNLL-2000 and 2003 shared tasks counted them (their script conlleval).

IOB1, IOB2 (BIO) and IOBES are all read: what begins and ends an entity follows from a tag and the one before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_ENTITY = re.compile(r"[BIES]-.+")


def names_entities(labels: Iterable[str]) -> bool:
    """Whether these tags are O and such as B-PER."""
    labels = set(labels)
    return all(label == "O" or _ENTITY.fullmatch(label) for label in labels) and labels != {"O"}


def entities(tags: list[str]) -> Iterator[tuple[str, int, int]]:
    """(kind, first word, word after the last) of each entity."""
    kind, start, before = "", 0, "O"
    for i, tag in enumerate([*tags, "O"]):
        mark, _, name = tag.partition("-")
        begins = mark in ("B", "S") or before in ("O", "E", "S") or name != kind
        if kind and (mark == "O" or begins):
            yield kind, start, i
            kind = ""
        if mark != "O" and begins:
            kind, start = name, i
        before = mark


def entity_scores(gold: list[list[str]], found: list[list[str]]) -> dict[str, float]:
    """precision, recall and f1 of whole entities, 0 to 1: right are those with the same words and kind."""
    counts = entity_counts(gold, found).values()
    precision, recall, f1 = precision_recall_f1(*(sum(column) for column in zip((0, 0, 0), *counts, strict=True)))
    return {"f1": f1, "precision": precision, "recall": recall}


def entity_counts(gold: list[list[str]], found: list[list[str]]) -> dict[str, tuple[int, int, int]]:
    """Of each kind of entity how many were found right, how many there are, and how many were found."""
    sides = [
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags)} for side in (gold, found)
    ]
    right, there, taken = (Counter(kind for _, kind, *_ in side) for side in (sides[0] & sides[1], *sides))
    return {kind: (right[kind], there[kind], taken[kind]) for kind in there.keys() | taken.keys()}


def precision_recall_f1(right: int, there: int, found: int) -> tuple[float, float, float]:
    """0 where nothing is there, or found."""
    return right / max(found, 1), right / max(there, 1), 2 * right / max(there + found, 1)
