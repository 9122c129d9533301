"""Entities in tagged sentences, counted as the CoNLL-2000 and 2003 shared tasks counted them (their script conlleval).

IOB1, IOB2 (BIO) and IOBES are all read: what begins and ends an entity follows from a tag and the one before it.
"""

from __future__ import annotations

import re
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
    sides = [
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags)} for side in (gold, found)
    ]
    right = len(sides[0] & sides[1])
    precision, recall = right / max(len(sides[1]), 1), right / max(len(sides[0]), 1)
    return {"f1": 2 * right / max(len(sides[0]) + len(sides[1]), 1), "precision": precision, "recall": recall}
