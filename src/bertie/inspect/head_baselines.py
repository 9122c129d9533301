"""Baselines that name the head of a word without any model: the word at a fixed distance."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bertie.inspect.probe_data import universal
from bertie.inspect.treebank import ParsedSentence

ROOT = 0
RIGHT = "right-branching"
OFFSETS = (*range(-5, 0), ROOT, *range(1, 6))
"""Choices: the distance to the head, or 0 for the root of the sentence."""
Key = Literal["nothing", "part of speech", "relation"]
_KEYS: dict[Key, Callable[[ParsedSentence, int], str]] = {
    "nothing": lambda _, __: "",
    "part of speech": lambda sentence, word: sentence.parts_of_speech[word],
    "relation": lambda sentence, word: universal(sentence.relations[word]),
}


@dataclass(frozen=True)
class OffsetBaseline:
    """Names the word at a distance that depends on a property of the word. Outside the sentence, it names the root."""

    key: Key
    """What the distance depends on."""
    offsets: dict[str, int]
    """The distance for every value of the property. `default` for others."""
    default: int
    """The distance that is right most often for all words."""

    @classmethod
    def fit(cls, key: Key, sentences: Iterable[ParsedSentence]) -> OffsetBaseline:
        """Choose the distance that is right most often for each value of the property."""
        counts: dict[str, np.ndarray] = {}
        for sentence in sentences:
            for word, head in enumerate(sentence.heads):
                count = counts.setdefault(_KEYS[key](sentence, word), np.zeros(len(OFFSETS), int))
                count += [_target(sentence, word, offset) == head for offset in OFFSETS]
        best = {value: OFFSETS[int(count.argmax())] for value, count in counts.items()}
        total = sum(counts.values(), np.zeros(len(OFFSETS), int))
        return cls(key, best, OFFSETS[int(total.argmax())])

    def predict(self, sentence: ParsedSentence) -> list[int]:
        """Return the head of each word; -1 for the root."""
        keys = (_KEYS[self.key](sentence, word) for word in range(len(sentence.words)))
        return [_target(sentence, word, self.offsets.get(key, self.default)) for word, key in enumerate(keys)]


RIGHT_BRANCHING = OffsetBaseline("nothing", {}, 1)
"""Names the next word, and the root for the last one."""


def _target(sentence: ParsedSentence, word: int, offset: int) -> int:
    target = word + offset
    return target if offset != ROOT and 0 <= target < len(sentence.words) else -1


def baselines(sentences: Many[ParsedSentence]) -> dict[str, OffsetBaseline]:
    """Return the baselines by name. `sentences` choose the distances."""
    return {
        RIGHT: RIGHT_BRANCHING,
        "best offset": OffsetBaseline.fit("nothing", sentences),
        "best offset for the part of speech": OffsetBaseline.fit("part of speech", sentences),
        "best offset for the relation": OffsetBaseline.fit("relation", sentences),
    }
