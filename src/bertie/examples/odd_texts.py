"""Texts that nobody should learn from unnoticed: empty ones, and equal ones with different labels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bertie.base import console
from bertie.base.errors import first_few

MOST = 200_000  # different texts that are compared with each other
_NOT_READ = {"id", "source", "lines", "label", "labels", "numbers", "tags", "answers"}  # fields of examples


class OddTexts:
    """The odd texts among examples. The memory does not grow with the number of the others."""

    def __init__(self, examples: Iterable[Any] = ()):
        self.empty: list[str] = []
        self.first: dict[int, tuple[frozenset[str], str]] = {}
        """The labels and the place of each text, by its hash."""
        self.contradictions: dict[int, str] = {}
        for example in examples:
            self.add(example)

    def add(self, example: Any) -> None:
        if not any(map(str.strip, example.texts)):
            self.empty.append(example.source)
        elif example.gold is not None:
            text = hash(tuple(value for name, value in vars(example).items() if name not in _NOT_READ))
            if text in self.first or len(self.first) < MOST:
                gold, source = self.first.setdefault(text, (frozenset(example.gold), example.source))
                if gold != frozenset(example.gold):
                    self.contradictions.setdefault(text, f"{source} and {example.source}")

    def warn(self, where: str) -> None:
        """Print a warning for each kind of them. where: the file, for messages."""
        if self.empty:
            places = first_few(self.empty, len(self.empty), ", ")
            console.warn(f"{where}: {console.plural(len(self.empty), 'example')} without text: {places}")
        if self.contradictions:
            texts, first = console.plural(len(self.contradictions), "text"), next(iter(self.contradictions.values()))
            console.warn(f"{where}: {texts} with different labels, first {first}: correct the labels")
