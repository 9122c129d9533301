"""Reading sets of labels: lists, cells with a separator, and columns of 0 and 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.label_sets import ONE, LabelSetExample, find_separator
from bertie.tasks import MultiLabel
from bertie.tasks.scoring import training_examples

Labels = list[tuple[str, ...] | None]


def read(tmp_path: Path, name: str, content: str, **settings: Any) -> list[Any]:
    path = tmp_path / name
    path.write_text(content)
    return list(MultiLabel(**settings).reader.read(path))


def labels(found: list[Any]) -> Labels:
    assert all(isinstance(each, LabelSetExample) for each in found), found
    return [each.labels for each in found]


def jsonl(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_lists(tmp_path: Path) -> None:
    rows = [["a", "b"], [], ["very happy, really"], [3, True], None]
    *found, unknown = read(tmp_path, "a.jsonl", jsonl(*({"text": "x", "labels": each} for each in rows)))
    assert labels(found) == [("a", "b"), (), ("very happy, really",), ("3", "true")]
    assert "a.jsonl:5: its labels are unknown; its columns are: text, labels" in str(unknown)
    assert found[0].source == "a.jsonl:1"


def test_pairs_and_named_columns(tmp_path: Path) -> None:
    row = {"q": "one", "a": "two", "tags": ["x"], "labels": "other"}
    [found] = read(tmp_path, "a.jsonl", jsonl(row), text="q", text_pair="a", label="tags")
    assert found == LabelSetExample("one", "two", ("x",), "a.jsonl:1")


@pytest.mark.parametrize("separator", [",", ";", "|"])
def test_a_separator_is_certain_if_all_parts_stand_alone(tmp_path: Path, separator: str) -> None:
    content = f'text,labels\nx,a\nx,b\nx,"b{separator}a"\nx,\n'
    assert labels(read(tmp_path, "a.csv", content)) == [("a",), ("b",), ("b", "a"), ()]


def test_lists_in_cells(tmp_path: Path) -> None:
    content = "text\tlabels\nx\t[\"a\", \"b, c\"]\nx\t[]\nx\t['a', 'b']\nx\t['a' 'b']\n"
    *good, bad = read(tmp_path, "a.tsv", content)
    assert labels(good) == [("a", "b, c"), (), ("a", "b")]
    assert "a.tsv:5: 'labels' begins with a bracket" in str(bad)


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["joy, hope"], ","),
        (["joy", "joy,hope"], ","),
        (["a", "b", "c", "a,b;c"], ","),
        (["joy hope", "joy"], " "),
        (["science", "computer science,art", "art", "computer science"], " "),
        (["a/b", "b"], "/"),
    ],
)
def test_a_cell_that_may_be_one_label_is_asked_about(tmp_path: Path, cells: list[str], separator: str) -> None:
    content = "text\tlabels\n" + "".join(f"x\t{cell}\n" for cell in cells)
    with pytest.raises(UsageError, match="could be one label or several"):
        read(tmp_path, "a.tsv", content)
    assert labels(read(tmp_path, "a.tsv", content, separator=ONE)) == [(cell,) for cell in cells]
    split = [tuple(part.strip() for part in cell.split(separator)) for cell in cells]
    assert labels(read(tmp_path, "a.tsv", content, separator=separator)) == split


def test_known_labels_decide() -> None:
    assert find_separator({"a,b": "x:1"}, ("a", "b")) == ","
    assert find_separator({"a,b": "x:1"}, ("a", "a,b")) == ONE
    assert find_separator({"very happy": "x:1", "sad": "x:2"}, ()) == ONE
    with pytest.raises(UsageError):
        find_separator({"a,c": "x:1"}, ("a", "b"))


def test_columns_of_0_and_1(tmp_path: Path) -> None:
    content = "id,text,rude,threat\n7,x,1,0\n8,y,0,0\n9,z,1,1\n"
    assert labels(read(tmp_path, "a.csv", content)) == [("rude",), (), ("rude", "threat")]
    assert labels(read(tmp_path, "a.csv", content, labels=("threat", "rude")))[2] == ("threat", "rude")


def test_other_columns_are_not_taken_for_labels(tmp_path: Path) -> None:
    content = "text,rude,likes\nx,1,0\ny,0,57\n"
    with pytest.raises(UsageError, match=r"'likes' has '57'.*--task.labels"):
        read(tmp_path, "a.csv", content)
    assert labels(read(tmp_path, "a.csv", content, labels=("rude",))) == [("rude",), ()]
    [error] = read(tmp_path, "b.csv", "text,rude\nx,-1\n", labels=("rude",))
    assert isinstance(error, UserError)


@pytest.mark.parametrize("value", [["a", "a"], ["a", ""], ["a", None], [["a"]], {"a": 1}])
def test_bad_labels(tmp_path: Path, value: Any) -> None:
    good, bad = read(tmp_path, "a.jsonl", jsonl({"text": "x", "labels": ["a"]}, {"text": "x", "labels": value}))
    assert good.labels == ("a",)
    assert isinstance(bad, UserError)
    assert "a.jsonl:2" in str(bad)


def test_two_columns_of_labels(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="more than one column"):
        read(tmp_path, "a.jsonl", jsonl({"text": "x", "labels": [], "label": []}))


def test_prediction_needs_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "a.jsonl").write_text(jsonl({"text": "x"}, {"text": 3}, {"text": "y", "labels": {"broken": 1}}))
    reader = MultiLabel(labels=("a", "b")).reader
    assert labels(list(reader.stream(tmp_path / "a.txt"))) == [None, None]
    first, error, last = reader.stream(tmp_path / "a.jsonl")
    assert labels([first, last]) == [None, None]
    assert isinstance(error, UserError)
    with pytest.raises(UsageError, match="without a label"):
        list(reader.read(tmp_path / "a.txt"))


def test_values_in_python() -> None:
    example = LabelSetExample("x", None, ("a",), "here")
    given = [{"text": "x", "labels": ["a"]}, {"text": "x", "labels": "a,b"}, example]
    reader = MultiLabel(labels=("a", "b")).reader
    assert labels(list(reader.values(given, labeled=True))) == [("a",), ("a", "b"), ("a",)]
    unlabeled = ["x", ("x", "y"), {"text": "x", "labels": "a,c"}, {"text": "x"}]
    assert [labels(list(reader.values([each]))) for each in unlabeled] == [[None]] * 4  # as from a file
    with pytest.raises(UserError, match="example 1: its labels are unknown"):
        list(reader.values([{"text": "x"}], labeled=True))
    with pytest.raises(UsageError, match="one label or several"):
        list(MultiLabel().reader.values([{"text": "x", "labels": "a,b"}], labeled=True))


def test_a_frame_is_split_as_a_file(tmp_path: Path) -> None:
    cells = ["joy", "hope", "joy,hope"]
    wanted = [("joy",), ("hope",), ("joy", "hope")]
    assert labels(read(tmp_path, "a.jsonl", jsonl(*({"text": "x", "labels": each} for each in cells)))) == wanted
    assert labels(list(MultiLabel().reader.values({"text": ["x"] * 3, "labels": cells}, labeled=True))) == wanted


def test_columns_that_some_rows_lack_are_asked_about(tmp_path: Path) -> None:
    """Otherwise a label that is not known, null or missing, would be one that is not there."""
    rows: list[dict[str, Any]] = [
        {"text": "x", "a": 1, "b": 0},
        {"text": "y", "a": 1, "b": None},
        {"text": "z", "b": 1},
    ]
    for given in (rows[:2], rows[::2], rows[1:], [{"text": "w", "labels": ["a"]}, rows[0]]):
        with pytest.raises(UsageError, match="its labels are not in the same columns as in earlier rows"):
            list(MultiLabel().reader.values(given, labeled=True))
    with pytest.raises(UsageError, match=r"a\.jsonl:2: its labels are not in the same columns"):
        read(tmp_path, "a.jsonl", jsonl({"text": "x", "a": 1}, {"text": "z", "b": 1}))
    found = MultiLabel().reader.values(
        [rows[0], {"b": 1, "text": "z", "a": 0}, {"text": "nothing known"}], labeled=True
    )
    assert labels([next(found), next(found)]) == [("a",), ("b",)]
    with pytest.raises(UserError, match="example 3: its labels are unknown"):
        next(found)


def test_emotions(shared_data: Path) -> None:
    folder = shared_data / "multilabel" / "goemotions"
    train, dev = (list(MultiLabel().reader.read(folder / name)) for name in ("train.tsv", "dev.tsv"))
    assert (len(train), len(dev)) == (43410, 5426)
    task = MultiLabel().fit(train)
    assert len(task.labels) == 28
    task.validate(dev)
    assert dev[1].labels == ("approval", "neutral")


def test_a_doubt_about_cells_is_resolved_by_the_training_examples(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text('text,labels\nx,a\nx,b\nx,"a,b"\n')
    dev.write_text('text,labels\nx,"a,new"\n')
    trained, examples = training_examples(MultiLabel(), train)
    with pytest.raises(UsageError, match="'a,new' could be one label or several"):
        list(MultiLabel().fit(examples).reader.read(dev))
    task: Any = trained.fit(examples)
    assert labels(list(task.reader.read(dev))) == [("a", "new")]
    assert labels(list(MultiLabel().as_trained(task).reader.read(dev))) == [("a", "new")]


def test_vectors_of_0_and_1_are_no_lists_of_labels(tmp_path: Path) -> None:
    rows = jsonl(*({"text": "x", "labels": each} for each in ([0, 1], [1, 0], [0, 0])))
    with pytest.raises(UsageError, match=r"a\.jsonl:3: 'labels' has 0 or 1 for each label, \[0, 0\]"):
        read(tmp_path, "a.jsonl", rows)
    with pytest.raises(UsageError, match="has 0 or 1 for each label"):
        read(tmp_path, "a.csv", 'text,labels\nx,"[0, 1, 1]"\n')


def test_ids_and_parts_are_no_labels(tmp_path: Path) -> None:
    found = read(tmp_path, "a.csv", "Unnamed: 0,comment_id,text,joy,anger\n0,1,x,1,0\n1,0,y,0,1\n")
    assert labels(found) == [("joy",), ("anger",)]
    with pytest.raises(UsageError, match=r"the column 'split' could be a label.*--task\.labels"):
        read(tmp_path, "a.csv", "text,split,joy\nx,0,1\n")
    assert labels(read(tmp_path, "a.csv", "text,split,joy\nx,0,1\n", labels=("joy",))) == [("joy",)]


def test_columns_that_are_labels_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a", "joy": 1, "is_certain": 0}]
    assert [each.labels for each in MultiLabel().reader.values(rows, labeled=True)] == [("joy",)]
    assert "each of these columns is a label: joy, is_certain" in capsys.readouterr().err
