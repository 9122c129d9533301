from __future__ import annotations

from collections import Counter

import pytest

from bertie.demo.compare import _hold_back
from bertie.tasks.data.texts import Example


def examples(*documents: tuple[str, str, int]) -> list[Example]:
    return [Example(f"{label} {source} {i}", None, label, source) for label, source, n in documents for i in range(n)]


@pytest.mark.parametrize(
    "documents",
    [
        [(label, f"{label}{number}", 20) for label in "ab" for number in range(30)],  # many small ones
        [(label, f"{label}{number}", 50) for label in "ab" for number in range(5)],  # each over a sixth
        [*[("a", f"a{number}", 20) for number in range(30)], ("b", "b0", 400), ("b", "b1", 200)],
    ],
)
def test_every_label_is_held_back_by_whole_documents(documents: list[tuple[str, str, int]]) -> None:
    kept, held = _hold_back(examples(*documents))
    assert {example.source for example in kept}.isdisjoint(example.source for example in held)
    for label in "ab":
        share = Counter(e.label for e in held)[label] / Counter(e.label for e in kept + held)[label]
        assert 0.1 <= share <= 1 / 3
    assert _hold_back(examples(*documents)) == (kept, held)


def test_labels_of_one_document_are_held_back_by_sentence() -> None:
    kept, held = _hold_back(examples(("a", "a0", 60), ("b", "b0", 60)))
    assert (len(kept), len(held)) == (100, 20)
    assert {example.label for example in held} == {"a", "b"}
