"""Choices with two texts, and the files of COPA, SocialIQA, RACE, ARC and CommonsenseQA."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.choices import ChoiceExample, Choices
from bertie.examples.reader import Reader
from bertie.tasks import Choose
from bertie.tasks.scoring import training_examples

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
    assert columns == {**uses, "label": "label (from 0)", "unused": "idx"}


def labels(found: list[Any]) -> list[int | None]:
    return [label for *_, label in parts(found)]


def test_the_file_says_from_which_number_labels_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A 0 proves 0, and the number of the endings, without a 0, proves 1. SocialIQA counts from 1."""
    social = [{**SOCIAL, "label": label} for label in ("1", "2")]
    assert labels(read(tmp_path, *social)) == [0, 1]
    assert labels(read(tmp_path, *social, labels_from=0)) == [1, 2]
    zero, _ = read(tmp_path, {**SOCIAL, "label": 0}, {**SOCIAL, "label": 3})  # one of them is a mistake
    assert "'label' is '0', but the 3 endings are 1 to 3" in str(zero)
    assert labels(read(tmp_path, {**SOCIAL, "label": "C"})) == [2]
    assert not capsys.readouterr().err
    assert labels(read(tmp_path, {**SOCIAL, "label": 0}, {**SOCIAL, "label": 2})) == [0, 2]
    assert "a.jsonl: labels count from 0, as " in capsys.readouterr().err
    rows = [{"context": "c", "endings": ["x", "y"], "label": label} for label in (1, 2)]
    assert labels(read(tmp_path, *rows)) == labels(read(tmp_path, *rows, labels_from=1)) == [0, 1]
    assert "a.jsonl:2 shows (--task.labels-from)" in capsys.readouterr().err
    good, mistake, _ = read(tmp_path, *rows, {**rows[0], "label": 0})
    assert good.label == 1
    assert "'label' is '2', but the 2 endings are 0 to 1" in str(mistake)
    with pytest.raises(UsageError, match=r"task\.labels_from"):
        Choose(labels_from=2)


def test_race(tmp_path: Path) -> None:
    row = {"example_id": "m.txt", "article": "a", "question": "q _", "options": ["w", "x", "y", "z"], "answer": "C"}
    assert parts(read(tmp_path, row)) == [("a", "q _", ("w", "x", "y", "z"), 2)]


@pytest.mark.parametrize(
    ("choices", "key"),
    [
        ({"text": ["x", "y"], "label": ["A", "B"]}, "B"),
        ({"text": ["x", "y"], "label": ["1", "2"]}, "2"),
        ([{"text": "x", "label": "A"}, {"text": "y", "label": "B"}], "B"),
        ({"A": "x", "B": "y"}, "B"),
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
        ({"context": "c", "choices": ["x", "y"], "endings": ["x", "y"]}, "could all be the endings"),
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


def both(tmp_path: Path, rows: list[dict[str, Any]], **settings: Any) -> list[tuple[Any, ...]]:
    """Read rows from a file and in memory, which must give the same."""
    found = parts(read(tmp_path, *rows, **settings))
    assert parts(list(Choose(**settings).reader.values(rows, labeled=True))) == found
    return found


def test_columns_numbered_from_1_are_asked_about(tmp_path: Path) -> None:
    """Unless a label 0 says that labels count from 0: "1" could also mean option1."""
    rows = [{"text": "t", "option1": "x", "option2": "y", "option3": "z", "answer": label} for label in ("1", "2")]
    for reader in (Choose().reader, Choose(endings=("option1", "option2", "option3")).reader):
        with pytest.raises(UserError, match=r"example 1: the labels could count from 0, or name the columns"):
            list(reader.values(rows, labeled=True))
        with pytest.raises(UserError, match=r"a\.jsonl:1: the labels could count .*--task\.labels-from to 0 or 1"):
            read(tmp_path, *rows)
    assert [label for *_, label in both(tmp_path, rows, labels_from=1)] == [0, 1]
    assert [label for *_, label in both(tmp_path, [*rows, {**rows[0], "answer": 0}])] == [1, 2, 0]
    assert [label for *_, label in both(tmp_path, [{**rows[0], "answer": "option1"}])] == [0]
    goal = {"goal": "g", "sol1": "x", "sol2": "y", "label": 1}  # PIQA counts from 0
    assert [label for *_, label in both(tmp_path, [goal])] == [1]


@pytest.mark.parametrize(("train", "first"), [((1, 0), 0), ((1, 3), 1)])
def test_dev_counts_as_the_training_examples(train: tuple[int, ...], first: int) -> None:
    rows = [{"text": "t", "option1": "x", "option2": "y", "option3": "z", "answer": label} for label in (1, 2)]
    task, _ = training_examples(Choose(), [{**rows[0], "answer": label} for label in train])
    task = Choose().as_trained(task)  # pyright: ignore
    assert [each.label for each in task.reader.values(rows, labeled=True)] == [1 - first, 2 - first]
    with pytest.raises(UserError, match=f"the 3 endings are {first} to {first + 2}"):
        list(task.reader.values([{**rows[0], "answer": 3 * (1 - first)}], labeled=True))


@pytest.mark.parametrize("label", ["1", 1.0, "1.0", 1])
@pytest.mark.parametrize("names", [["1", "2", "3"], [1.0, 2.0, 3.0], ["A", "1", "C"]])
def test_numbers_that_name_the_endings(tmp_path: Path, label: Any, names: list[Any]) -> None:
    row = {"question": "q", "choices": {"text": ["x", "y", "z"], "label": names}, "answerKey": label}
    assert both(tmp_path, [row])[0][3] == (1 if "A" in names else 0)
    if "A" not in names:
        with pytest.raises(UserError, match="'answerKey' is '0', but the 3 endings are 1, 2, 3"):
            list(Choose().reader.values([{**row, "answerKey": 0}], labeled=True))


@pytest.mark.parametrize(
    ("columns", "settings", "wanted"),
    [
        ({"premise": "p", "asks-for": "effect"}, {}, ("p", "What happened as a result?")),
        ({"context": "p", "question": "effect"}, {}, ("p", "What happened as a result?")),
        ({"Sent": "p", "question": "cause"}, {"context": "Sent"}, ("p", "What was the cause of this?")),
        ({"context": "p", "query": "which"}, {}, ("p", "which")),
        ({"sent1": "p", "sent2": "the"}, {}, ("p", "the")),  # SWAG without the phrase that they make
    ],
)
def test_texts_before_the_endings(
    tmp_path: Path, columns: dict[str, str], settings: dict[str, Any], wanted: tuple[str, str]
) -> None:
    found = both(tmp_path, [{**columns, "ending0": "x", "ending1": "y", "label": 0}], **settings)
    assert [each[:2] for each in found] == [wanted]
    with pytest.raises(UsageError, match="more than one column could be the context"):
        read(tmp_path, {"prompt": "p", "query": "q", "endings": ["x", "y"], "label": 0})


def test_a_last_ending_that_pandas_lacks(tmp_path: Path) -> None:
    row = {"context": "c", "ending0": "a", "ending1": "b", "ending2": float("nan"), "label": 1}
    assert both(tmp_path, [row]) == [("c", "", ("a", "b"), 1)]


@pytest.mark.parametrize("columns", ["question,ending{}", "context,choice{}", "question,endings"])
def test_a_number_that_is_the_text_of_another_ending_is_not_guessed(columns: str, tmp_path: Path) -> None:
    """In columns as in a list; in SWAG's files labels are numbers."""
    context, ending = columns.split(",")
    endings = ["1", "2", "3", "4"]
    named = {ending.format(number): text for number, text in enumerate(endings)} if "{" in ending else {ending: endings}
    (tmp_path / "a.jsonl").write_text(json.dumps({context: "1+1?", **named, "label": 2}))
    assert "could be the number of an ending or its text" in str(next(Reader(Choices()).read(tmp_path / "a.jsonl")))
    [stated] = Reader(Choices(labels_from=0)).read(tmp_path / "a.jsonl")
    swag = {f"ending{number}": text for number, text in enumerate(endings)}
    (tmp_path / "a.jsonl").write_text(json.dumps({"sent1": "1+1", "sent2": "is", **swag, "label": 2}))
    [known] = Reader(Choices()).read(tmp_path / "a.jsonl")
    assert stated.label == known.label == 2
