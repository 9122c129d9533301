"""Choices with two texts, and the files of COPA, SocialIQA, RACE, ARC and CommonsenseQA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.errors import UsageError, UserError
from bertie.tasks import Choose
from bertie.tasks.data.choices import ChoiceExample

Q = {"context": "c", "question": "q?"}
SOCIAL = {**Q, "answerA": "x", "answerB": "y", "answerC": "z"}


def read(tmp_path: Path, *rows: dict[str, Any], **settings: Any) -> list[Any]:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(Choose(**settings).reader.read(path))


def parts(found: list[Any]) -> list[tuple[Any, ...]]:
    assert all(isinstance(each, ChoiceExample) for each in found), found
    return [(each.context, each.lead, each.endings, each.label) for each in found]


def test_copa(tmp_path: Path) -> None:
    row = {"premise": "p", "choice1": "x", "choice2": "y", "question": "effect", "idx": 0, "label": 1}
    found = read(tmp_path, row, {**row, "question": "cause"}, {**row, "question": "Why?"})
    assert [lead for _, lead, *_ in parts(found)] == [
        "What happened as a result?",
        "What was the cause of this?",
        "Why?",
    ]
    assert parts(found)[0] == ("p", "What happened as a result?", ("x", "y"), 1)
    columns = Choose().reader.columns(tmp_path / "a.jsonl")
    uses = {"context": "premise", "before the endings": "question", "endings": "choice1, choice2"}
    assert columns == {**uses, "label": "label (from 0)"}


def test_social_iqa_counts_from_1(tmp_path: Path) -> None:
    rows = [{**SOCIAL, "label": label} for label in ("1", "2")]
    assert [label for *_, label in parts(read(tmp_path, *rows))] == [0, 1]
    assert [label for *_, label in parts(read(tmp_path, *rows, labels_from=0))] == [1, 2]
    zero, _ = read(tmp_path, {**SOCIAL, "label": 0}, rows[0])
    assert "'label' is '0', and the 3 endings are 1 to 3" in str(zero)
    [letter] = read(tmp_path, {**SOCIAL, "label": "C"})
    assert letter.label == 2


def test_other_labels_from_1_must_be_stated(tmp_path: Path) -> None:
    rows = [{"context": "c", "endings": ["x", "y"], "label": label} for label in (1, 2)]
    with pytest.raises(UserError, match=r"numbered from 1 to 2, .*--task\.labels-from 1"):
        read(tmp_path, *rows)
    assert [label for *_, label in parts(read(tmp_path, *rows, labels_from=1))] == [0, 1]
    with pytest.raises(UsageError, match="labels_from is 2: give 0 or 1"):
        read(tmp_path, labels_from=2)


def test_race(tmp_path: Path) -> None:
    row = {"example_id": "m.txt", "article": "a", "question": "q _", "options": ["w", "x", "y", "z"], "answer": "C"}
    assert parts(read(tmp_path, row)) == [("a", "q _", ("w", "x", "y", "z"), 2)]


@pytest.mark.parametrize(
    ("choices", "key"),
    [
        ({"text": ["x", "y"], "label": ["A", "B"]}, "B"),
        ({"text": ["x", "y"], "label": ["1", "2"]}, "2"),
        ([{"text": "x", "label": "A"}, {"text": "y", "label": "B"}], "B"),
        ("{'text': array(['x', 'y'], dtype=object), 'label': array(['A', 'B'], dtype=object)}", "B"),
        ({"A": "x", "B": "y"}, "B"),
        ("['x' 'y']", "y"),
    ],
)
def test_arc_and_commonsense_qa(tmp_path: Path, choices: Any, key: str) -> None:
    row = {"id": "1", "question": "q", "choices": choices, "answerKey": key}
    assert parts(read(tmp_path, row)) == [("q", "", ("x", "y"), 1)]
    if isinstance(choices, list):  # as their authors published them
        nested = {"question": {"stem": "q", "choices": choices}, "answerKey": key}
        assert parts(read(tmp_path, nested)) == [("q", "", ("x", "y"), 1)]


def test_a_question_column_can_be_named(tmp_path: Path) -> None:
    row = {"body": "b", "why": "w", "endings": ["x", "y"], "label": 0}
    assert parts(read(tmp_path, row, context="body", question="why")) == [("b", "w", ("x", "y"), 0)]
    assert parts(read(tmp_path, row, context="body")) == [("b", "", ("x", "y"), 0)]
    with pytest.raises(UsageError, match="no column 'who'"):
        read(tmp_path, row, context="body", question="who")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"context": "c", "text": "t", "choices": ["x", "y"]}, "more than one column could be the context"),
        (
            {"context": "c", "text": "t", "question": "q", "choices": ["x", "y"]},
            "more than one column could be the con",
        ),
        ({"prompt": "c", "question": "q", "choices": ["x", "y"]}, "more than one column could be the context"),
        ({"Context": "c", "context": "d", "choices": ["x", "y"]}, "more than one column could be the context"),
        ({"context": "c", "choices": ["x", "y"], "endings": ["x", "y"]}, "could all be the endings"),
        ({"context": "c", "choices": ["x", "y"], "choice1": "x", "choice2": "y"}, "could all be the endings"),
        ({"context": "c", "ending0": "x", "ending2": "y"}, "one of the endings ending0, ending2 is missing"),
        ({"context": "c", "choices": ["x", "y"], "answer": "x"}, "more than one column could be the label"),
    ],
)
def test_several_candidates_are_asked_about(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"{message}.*its columns are.*Choose with --task"):
        read(tmp_path, {**row, "label": 0})


def test_a_column_choice_is_no_ending(tmp_path: Path) -> None:
    assert parts(read(tmp_path, {"context": "c", "choice": "?", "choices": ["x", "y"], "label": 0}))[0][2] == ("x", "y")


def test_a_number_that_is_also_an_ending_is_asked_about(tmp_path: Path) -> None:
    row = {"question": "1 + 1", "choices": ["10", "2", "1"]}
    unclear, text = read(tmp_path, {**row, "answer": "1"}, {**row, "answer": "10"})
    assert "'answer' is '1', which could be the number of an ending or its text" in str(unclear)
    assert text.label == 0
    [number] = read(tmp_path, {**row, "answer": "1"}, labels_from=0)
    assert number.label == 1


@pytest.mark.parametrize("marker", [-1, "", "-", "None", "?", None, float("nan")])
def test_markers_of_no_label(tmp_path: Path, marker: Any) -> None:
    good = {"context": "c", "endings": ["x", "y"], "label": 0}
    error, _ = read(tmp_path, {**good, "label": marker}, good)
    assert str(error).endswith("a.jsonl:1: no label")
