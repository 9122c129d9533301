"""Entities in tagged sentences, counted like the script of the CoNLL-2000 and CoNLL-2003 shared tasks (conlleval).

Reads IOB1, IOB2 (BIO) and IOBES alike: a tag and the tag before it determine where an entity begins and ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

_ENTITY = re.compile(r"[BIES]-.+")


def names_entities(labels: Iterable[str]) -> bool:
    """Return whether the tags mark entities: all are O or have the form B-PER, and not all are O."""
    labels = set(labels)
    return all(label == "O" or _ENTITY.fullmatch(label) for label in labels) and labels != {"O"}


def entities(tags: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, first word, word after the last) of each entity."""
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


def entity_scores(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, float]:
    """Return precision, recall and f1 of whole entities, 0 to 1. An entity is correct if its words and kind match.

    Args:
        gold: The gold tags of each sentence.
        predicted: The predicted tags of each sentence.
    """
    counts = entity_counts(gold, predicted).values()
    precision, recall, f1 = precision_recall_f1(*(sum(column) for column in zip((0, 0, 0), *counts, strict=True)))
    return {"f1": f1, "precision": precision, "recall": recall}


def entity_counts(gold: list[list[str]], predicted: list[list[str]]) -> dict[str, tuple[int, int, int]]:
    """Count, for each kind of entity: (correct predictions, gold entities, predicted entities)."""
    both = (gold, predicted)
    sides = [{(number, *entity) for number, tags in enumerate(side) for entity in entities(tags)} for side in both]
    correct, in_gold, in_predicted = (Counter(kind for _, kind, *_ in side) for side in (sides[0] & sides[1], *sides))
    return {kind: (correct[kind], in_gold[kind], in_predicted[kind]) for kind in in_gold.keys() | in_predicted.keys()}


def precision_recall_f1(correct: int, gold: int, predicted: int) -> tuple[float, float, float]:
    """Return precision, recall and F1 of counts; 0 if there are no gold or no predicted entities."""
    return correct / max(predicted, 1), correct / max(gold, 1), 2 * correct / max(gold + predicted, 1)
