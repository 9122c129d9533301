"""The demo's comparison of a pre-trained model with baselines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertie.demo import compare as compare_module
from bertie.demo.compare import _hold_back, compare
from bertie.demo.corpus import DemoData
from bertie.tasks.data.texts import Example


def examples(*documents: tuple[str, str, int]) -> list[Example]:
    return [Example(f"{label} {source} {i}", None, label, source) for label, source, n in documents for i in range(n)]


@pytest.mark.parametrize(
    "documents",
    [
        [(label, f"{label}{number}", 20) for label in "ab" for number in range(30)],  # many small documents
        [(label, f"{label}{number}", 50) for label in "ab" for number in range(5)],  # each more than a sixth
        [*[("a", f"a{number}", 20) for number in range(30)], ("b", "b0", 400), ("b", "b1", 200)],
    ],
)
def test_whole_documents_of_every_label_are_held_back(documents: list[tuple[str, str, int]]) -> None:
    kept, held = _hold_back(examples(*documents))
    assert {example.source for example in kept}.isdisjoint(example.source for example in held)
    for label in "ab":
        share = Counter(e.label for e in held)[label] / Counter(e.label for e in kept + held)[label]
        assert 0.1 <= share <= 1 / 3
    assert _hold_back(examples(*documents)) == (kept, held)


def test_sentences_are_held_back_if_every_label_has_one_document() -> None:
    kept, held = _hold_back(examples(("a", "a0", 60), ("b", "b0", 60)))
    assert (len(kept), len(held)) == (100, 20)
    assert {example.label for example in held} == {"a", "b"}


def test_compare_resumes_without_repeating_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[bool, float, int]] = []

    def accuracy(config: Any, rate: float, seed: int, *_: Any) -> float:
        if len(runs) == stop_at:
            raise KeyboardInterrupt
        runs.append((config.from_scratch, rate, seed))
        return round(0.1 + rate + 0.01 * seed, 4)

    monkeypatch.setattr(compare_module, "_accuracy", accuracy)
    monkeypatch.setattr(compare_module, "read_checkpoint", lambda _: None)
    labeled = examples(*[(label, f"{label}{number}", 4) for label in "ab" for number in range(8)])
    data = DemoData([], labeled, labeled, "which?")
    for stop_at in (5, 6, -1):
        if stop_at < 0:
            found = compare(data, tmp_path, 1, 3, tmp_path / "results.json")
        else:
            with pytest.raises(KeyboardInterrupt):
                compare(data, tmp_path, 1, 3, tmp_path / "results.json")
    assert len(runs) == 2 * (3 + 3)
    assert found.accuracy == {start: [0.103, 0.113, 0.123] for start in ("pre-trained", "from scratch")}
