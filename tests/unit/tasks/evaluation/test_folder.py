from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base.errors import UsageError
from bertie.examples.squad import Answer, Question
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example
from bertie.tasks import Classify, Embed, Regress, Span, Tag, Task
from bertie.tasks.evaluation.folder import PAGE, PREDICTIONS, SCORES, evaluation_folder, write
from bertie.tasks.predictions import (
    ClassPrediction,
    NumberPrediction,
    SimilarityPrediction,
    SpanCandidate,
    SpanPrediction,
    TagPrediction,
)

EVIL = "<script>alert('x')</script> & \"q\""
V = np.array([1.0, 0.0], np.float32)


def example(label: str | None, pair: str | None = None) -> Example:
    return Example(EVIL, pair, label, f"{EVIL}:1")


def question(answers: tuple[Answer, ...]) -> Question:
    return Question("1" if answers else "2", f"Who {EVIL}?", f"It is {EVIL}, says Ann.", answers, f"{EVIL}: 1")


KINDS: list[tuple[Task, list[Any], list[Any], set[str], tuple[str, ...]]] = [
    (
        Classify(labels=(EVIL, "b")),
        [ClassPrediction("b", {EVIL: 0.25, "b": 0.75})],
        [example(EVIL, EVIL)],
        {"classes", "confusion", "calibration"},
        ("By class", "Confusion matrix", "Expected calibration error", "Largest errors", "b, 75.0 %"),
    ),
    (
        Tag(labels=(f"B-{EVIL}", "O")),
        [TagPrediction([EVIL, "runs"], ["O", "O"], [0.75, 0.9])],
        [TaggedSentence((EVIL, "runs"), (f"B-{EVIL}", "O"), EVIL)],
        {"entities", "classes", "confusion", "calibration"},
        ("By kind of entity", "By tag", "→ O, 75.0 %", "1 of 2 words"),
    ),
    (
        Span(threshold=0.5),
        [
            SpanPrediction("1", "Ann", 0, 3, 0.5, -1.0, [SpanCandidate("Ann", 0, 3, 1.0, 0.5)]),
            SpanPrediction(
                "2", "", 0, 0, 0.7, 1.0, [SpanCandidate("", 0, 0, 1.0, 0.7), SpanCandidate("Ann", 0, 3, 0.0, 0.3)]
            ),
        ],
        [question((Answer(EVIL, 6),)), question(())],
        {"answerable", "question_words", "threshold", "calibration"},
        ("By question word", "No-answer threshold", "τ = 0.5", "Questions with and without answer"),
    ),
    (
        Embed(),
        [SimilarityPrediction(0.5, (V, V)), SimilarityPrediction(0.25, (V, V))],
        [example("1", EVIL), example("3", EVIL)],
        set(),
        ("Similarity and score", "above 75.0 % of all"),
    ),
    (
        Embed(),
        [SimilarityPrediction(1.0, (V, V)), SimilarityPrediction(1.0, (V, V))],
        [Example(EVIL, EVIL, None, "f:1"), Example("b", "c", None, "f:2")],
        {"partners", "ranks"},
        ("Retrieval of the partner", "2 of 2"),
    ),
]


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(("task", "predictions", "examples", "names", "phrases"), KINDS)
def test_every_task_writes_its_findings_with_texts_escaped(
    task: Task, predictions: list[Any], examples: list[Any], names: set[str], phrases: tuple[str, ...], tmp_path: Path
) -> None:
    result = {"scores": {"accuracy": 0.5}, "examples": len(examples), "seconds": 1.25}
    write(tmp_path, f"run on {EVIL}", task, predictions, examples, result)
    lines = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == len(examples)
    assert [line["source"] for line in lines] == [each.source for each in examples]
    assert all("loss" in line and "vectors" not in line for line in lines)
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert {name: scores[name] for name in result} == result
    assert scores["task"] == task.kind
    assert scores.keys() - result.keys() - {"task"} == names
    html = (tmp_path / "report.html").read_text()
    reader = Reader()
    reader.feed(html)
    assert "script" not in reader.tags
    assert "<script>alert('x')</script>" in reader.text
    for phrase in phrases:
        assert phrase in reader.text, phrase
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", html)


def test_page_without_errors_states_that_all_are_correct(tmp_path: Path) -> None:
    write(tmp_path, "t", Regress(), [NumberPrediction(1.0)], [example("1")], {"scores": {"mse": 0.0}, "examples": 1})
    assert "All predictions are correct." in (tmp_path / "report.html").read_text()


def fill(folder: Path, content: str) -> None:
    for name in (PREDICTIONS, PAGE):
        (folder / name).write_text(content)
    (folder / SCORES).write_text('{"of": "a on b"}')


def test_only_an_earlier_evaluation_of_the_same_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for content in ("old", "new"):
        with evaluation_folder(out, "a on b") as folder:
            fill(folder, content)
            if content == "new":
                assert (out / PREDICTIONS).read_text() == "old"
    assert [(out / name).read_text() for name in (PREDICTIONS, PAGE)] == ["new"] * 2
    with pytest.raises(UsageError, match=r"out holds another evaluation \(a on b\)"), evaluation_folder(out, "c on b"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "notes.txt").write_text("mine")
    with (
        pytest.raises(UsageError, match="out already exists and is not an evaluation"),
        evaluation_folder(out, "a on b"),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file already exists"), evaluation_folder(tmp_path / "file"):
        pass
    assert (out / "notes.txt").read_text() == "mine"


def test_interrupted_evaluation_leaves_the_earlier_one(tmp_path: Path) -> None:
    with evaluation_folder(tmp_path / "out", "a on b") as folder:
        fill(folder, "old")

    def interrupted() -> None:
        with evaluation_folder(tmp_path / "out", "a on b") as folder:
            (folder / PREDICTIONS).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(tmp_path / "out" / name).read_text() for name in (PREDICTIONS, PAGE)] == ["old"] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
