"""Texts that nobody should learn from unnoticed: empty ones, and equal ones with different labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any

from bertie.base import console
from bertie.base.errors import SHOWN, first_few

MOST = 200_000  # different texts that are compared with each other
_NOT_READ = {"id", "source", "lines", "label", "labels", "numbers", "tags", "answers"}


class OddTexts:
    """Counts the odd texts among examples, in fixed memory."""

    def __init__(self, examples: Iterable[Any] = ()):
        self.examples = self.empty = 0
        self.first_empty: list[str] = []
        self.first: dict[int, tuple[frozenset[str], str]] = {}
        """The labels and the place of each text, by its hash."""
        self.contradictions: dict[int, tuple[str, str]] = {}
        for example in examples:
            self.add(example)

    def add(self, example: Any) -> None:
        self.examples += 1
        if not any(map(str.strip, example.texts)):
            self.empty += 1
            self.first_empty += [example.source] * (self.empty <= SHOWN)
        elif example.gold is not None:
            text, gold = hash(_read_fields(type(example))(example)), frozenset(example.gold)
            if text in self.first or len(self.first) < MOST:
                first, source = self.first.setdefault(text, (gold, example.source))
                if first != gold:
                    self.contradictions.setdefault(text, (source, example.source))

    def warn(self, where: str) -> None:
        """Print a warning for each kind of them. where: the file, for messages."""
        if self.empty:
            empty = f"{self.empty:,} of {self.examples:,} examples have no text"
            console.warn(f"{where}: {empty}: {first_few(self.first_empty, self.empty, ', ')}")
        if self.contradictions:
            texts, places = console.plural(len(self.contradictions), "text"), next(iter(self.contradictions.values()))
            console.warn(f"{where}: {texts} with different labels, first {' and '.join(places)}: correct the labels")


@cache
def _read_fields(kind: type) -> Callable[[Any], Any]:
    """Return what gets the part of an example that a model reads."""
    return attrgetter(*(field.name for field in fields(kind) if field.name not in _NOT_READ))
