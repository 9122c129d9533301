"""The demo's comparison of a pre-trained model with baselines."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.corpus.executors import LocalExecutor
from bertie.demo import compare as compare_module
from bertie.demo.compare import START, Comparison, _hold_back, compare
from bertie.demo.corpus import DemoData
from bertie.demo.page import gains
from bertie.examples.texts import Example


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

    def right(_train: Any, held_back: list[Example], test: list[Example], _: Any, config: Any) -> list[bool]:
        if len(runs) == stop_at:
            raise KeyboardInterrupt
        rate, seed = config.training.learning_rate, config.seed
        runs.append((config.from_scratch, rate, seed))
        selected = rate == (1e-3 if config.from_scratch else 2e-3)
        return [selected] * len(held_back) + [number <= seed for number in range(len(test))]

    monkeypatch.setattr(compare_module, "_right", right)
    labeled = examples(*[(label, f"{label}{number}", 4) for label in "ab" for number in range(8)])
    data = DemoData([], labeled, labeled, "which?")
    for stop_at in (3, 6):  # noqa: B007 (`right` reads it)
        with pytest.raises(KeyboardInterrupt):
            compare(data, tmp_path, 1, 3, tmp_path / "results.json", LocalExecutor(1))
    stop_at = -1
    found = compare(data, tmp_path, 1, 3, tmp_path / "results.json", LocalExecutor(1))
    starts = ((False, 2e-3), (True, 1e-3))
    selecting = [(scratch, rate, 0) for scratch, _ in starts for rate in (1e-3, 2e-3)]
    assert runs == selecting + [(scratch, best, seed) for scratch, best in starts for seed in (1, 2)]
    count = len(labeled)
    assert found.accuracy == {start: [1 / count, 2 / count, 3 / count] for start in ("pre-trained", "from scratch")}
    assert found.sweep["pre-trained"] == {"0.001": 0.0, "0.002": 1.0}
    assert found.bag_of_words > 0.9


def comparison(pretrained: list[list[bool]], scratch: list[list[bool]], bag: list[bool]) -> Comparison:
    correct = {"pre-trained": pretrained, "from scratch": scratch, "bag of words": [bag]}
    return Comparison({start: {"0.001": 0.5} for start in START.values()}, correct, 0.1, 3, {"train": 9})


def test_gains_have_the_error_of_seeds_and_of_sentences() -> None:
    always, never, half = [True] * 8, [False] * 8, [True, False] * 4
    same = comparison([half, half, half], [never] * 3, half)
    assert same.gain("bag of words") == (0.0, 0.0, 0.0)  # right on the same sentences
    error = np.sqrt(np.var(half, ddof=1) / 8)
    assert same.gain("from scratch") == pytest.approx(
        (0.5, error, 2.3646 * error), rel=1e-4
    )  # t of 7 degrees of freedom
    seeds = comparison([always, never], [always, never], half)  # no sentence is easier than another, but seeds differ
    error = np.sqrt(2 * np.var([1, 0], ddof=1) / 2)
    assert seeds.gain("from scratch") == pytest.approx((0.0, error, 4.3027 * error), rel=1e-4)  # of 2


def test_two_seeds_have_no_interval() -> None:
    half, more = [True, False] * 4, [True] * 6 + [False] * 2
    assert comparison([half, more], [half, half], half).table()[0][1] == "0.625"
    assert comparison([half, more, more], [half, half], half).table()[0][1] == "0.667 ± 0.359"
    assert "gains 12.5 points over training from scratch and" in gains(comparison([half, more], [half, half], half))
    assert "; 95 % confidence" in gains(comparison([half, more, more], [half, half], half))
