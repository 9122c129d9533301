"""The first examples with each label, which say whether a task can be fitted on all of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

MAX_KINDS = 10_000
"""Different labels of which examples are kept."""


class FirstExamples:
    """The first two examples with each label. The memory does not grow with their number.

    `fit` of most tasks refuses these if it refuses all examples: it reads the labels, whether each occurs once, and whether
    there are pairs.
    """

    def __init__(self) -> None:
        self.examples: list[Any] = []
        self.kinds: Counter[Any] = Counter()

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, example: Any) -> None:
        kind = (example.gold, len(example.texts))
        if kind in self.kinds or len(self.kinds) < MAX_KINDS:
            self.kinds[kind] += 1
            self.examples += [example] * (self.kinds[kind] <= 2)
