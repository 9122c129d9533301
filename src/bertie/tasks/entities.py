"""Entities in tagged sentences. `examples/tag_form.py` says which words are one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bertie.examples.tag_form import OUTSIDE, TagForm, TagMark


def entities(tags: Iterable[str], form: TagForm) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, first word, word after the last) of each entity."""
    return (_complete if form.strict else _begun)(form.marks(tags))


def _begun(marks: list[TagMark]) -> Iterator[tuple[str, int, int]]:
    """Yield entities as the script of the CoNLL-2000 and CoNLL-2003 shared tasks (conlleval) counts them."""
    kind, start = "", 0
    for i, (place, name) in enumerate([*marks, OUTSIDE]):
        begins = place == "B" or name != kind
        if kind and begins:
            yield kind, start, i
        if begins:
            kind, start = name, i


def _complete(marks: list[TagMark]) -> Iterator[tuple[str, int, int]]:
    """Yield entities as seqeval's strict mode counts them: B I … E of one kind, or S."""
    kind, start = "", 0
    for i, (place, name) in enumerate(marks):
        if place in "BS":
            kind, start = name, i
        elif name != kind:
            kind = ""
        if place in "ES" and kind:
            yield kind, start, i + 1
        if place in "ES":
            kind = ""


def entity_counts(gold: list[list[str]], predicted: list[list[str]], form: TagForm) -> dict[str, tuple[int, int, int]]:
    """Count, for each kind of entity: (correct predictions, gold entities, predicted entities)."""
    both = (gold, predicted)
    sides = [
        {(number, *entity) for number, tags in enumerate(side) for entity in entities(tags, form)} for side in both
    ]
    correct, in_gold, in_predicted = (Counter(kind for _, kind, *_ in side) for side in (sides[0] & sides[1], *sides))
    return {kind: (correct[kind], in_gold[kind], in_predicted[kind]) for kind in in_gold.keys() | in_predicted.keys()}
