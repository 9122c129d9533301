from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertie.demo import compare as comparing
from bertie.demo.compare import _hold_back, compare
from bertie.demo.corpus import DemoData
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


def test_models_that_are_done_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[bool, float, int]] = []

    def accuracy(config: Any, rate: float, seed: int, *_: Any) -> float:
        if len(done) == stop_at:
            raise KeyboardInterrupt
        done.append((config.from_scratch, rate, seed))
        return round(0.1 + rate + 0.01 * seed, 4)

    monkeypatch.setattr(comparing, "_accuracy", accuracy)
    monkeypatch.setattr(comparing, "read_checkpoint", lambda _: None)
    labelled = examples(*[(label, f"{label}{number}", 4) for label in "ab" for number in range(8)])
    data = DemoData([], labelled, labelled, "which?")
    for stop_at in (5, 6, -1):
        if stop_at < 0:
            found = compare(data, tmp_path, 1, 3, tmp_path / "known.json")
        else:
            with pytest.raises(KeyboardInterrupt):
                compare(data, tmp_path, 1, 3, tmp_path / "known.json")
    assert len(done) == 2 * (3 + 3)
    assert found.accuracy == {start: [0.103, 0.113, 0.123] for start in ("pre-trained", "from scratch")}
