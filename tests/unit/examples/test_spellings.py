"""Labels that one program writes as true and 1, and another one as True and 1.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UserError
from bertie.examples.labels import LabelRules
from bertie.tasks import AnyTask, Classify, MultiLabel, Relate
from bertie.tasks.inspect_data import inspect_data
from bertie.tasks.scoring import labeled_examples, score


@pytest.mark.parametrize(
    ("labels", "classes", "names"),
    [
        ({"True", "false"}, (), {"True": "true"}),
        ({"TRUE", "FALSE", "-"}, (), {"TRUE": "true", "FALSE": "false"}),
        ({"TRUE", "FALSE", "MIXTURE"}, (), {}),  # names
        ({"TRUE", "False"}, ("FALSE", "MIXTURE", "TRUE"), {"False": "FALSE"}),
        ({"true"}, ("False", "True"), {"true": "True"}),
        ({"TRUE"}, ("True", "true"), {}),
        ({"1.0", "0.0"}, (), {}),
        ({"1.0", "-1.0", "1"}, ("1", "-1"), {"1.0": "1", "-1.0": "-1"}),
        ({"1", "2"}, ("0.0", "1.0"), {"1": "1.0"}),
        ({"1.5", "v1.0", "01"}, ("1", "v1"), {}),
    ],
)
def test_names_of_labels(labels: set[str], classes: tuple[str, ...], names: dict[str, str]) -> None:
    assert LabelRules(classes).spellings(labels) == names


TASKS: list[AnyTask] = [Classify(), MultiLabel(), Relate()]


def rows(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"<e1>a</e1> {n} <e2>b</e2>", "label": label} for n, label in enumerate(labels)]


def write(path: Path, *labels: Any) -> Path:
    """Write a table as pandas does, or .jsonl."""
    lines = [json.dumps(row) for row in rows(*labels)]
    if path.suffix == ".csv":
        lines = ["text,label", *(f"{row['text']},{row['label']}" for row in rows(*labels))]
    path.write_text("\n".join(lines))
    return path


@pytest.mark.parametrize("task", TASKS)
def test_true_and_false_are_the_same_in_all_formats(task: AnyTask, tmp_path: Path) -> None:
    given: list[Any] = [
        rows(True, False),
        write(tmp_path / "a.csv", True, False),
        write(tmp_path / "a.jsonl", True, False),
    ]
    given.append(write(tmp_path / "b.csv", "TRUE", "False"))
    for each in given:
        examples = labeled_examples(task.reader, each)
        assert [example.gold for example in examples] == [("true",), ("false",)]
        assert inspect_data(task, each)["labels"] == {"true": 1, "false": 1}
    fitted = task.fit(labeled_examples(task.reader, given[1]))
    assert fitted.labels == ("false", "true")
    assert score(task, given[0], [{"prediction": "TRUE"}, {"prediction": "False"}])["scores"]
    if not isinstance(task, Relate):
        mixed = write(tmp_path / "c.csv", "True", "true", "False")
        assert inspect_data(task, mixed)["labels"] == {"true": 2, "false": 1}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("classes", [(0, 1), (0.0, 1.0)])
def test_pandas_writes_1_0_for_1(task: AnyTask, classes: tuple[Any, ...], tmp_path: Path) -> None:
    fitted = task.fit(labeled_examples(task.reader, write(tmp_path / "train.csv", *classes)))
    for labels in ((1, 0), (1.0, 0.0)):
        for dev in (write(tmp_path / "dev.csv", *labels), write(tmp_path / "dev.jsonl", *labels), rows(*labels)):
            examples = labeled_examples(fitted.reader, dev)
            fitted.validate(examples)
            assert [example.gold for example in examples] == [(str(classes[1]),), (str(classes[0]),)]
            predictions = [{"prediction": 1}, {"prediction": 0.0}]
            assert score(fitted, dev, predictions)["scores"][fitted.metric] == 1
            assert score(task, dev, predictions)["scores"][fitted.metric] == 1


def test_other_numbers_stay_apart() -> None:
    fitted = Classify().fit(labeled_examples(Classify().reader, rows(0, 1)))
    with pytest.raises(UserError, match=r"the label '1\.5' is none of the classes; the classes are 0, 1"):
        fitted.validate(labeled_examples(fitted.reader, rows(0, 1.5)))


def test_what_was_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "said.csv", True, False)
    labeled_examples(Classify().reader, path)
    assert f"{path}: bertie reads the labels False as false, True as true\n" in capsys.readouterr().err


@pytest.mark.parametrize("cells", ["True,False", "TRUE,FALSE", "true,0.0"])
def test_columns_of_labels_may_say_true_and_false(cells: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"text,joy,fear\na,{cells}\nb,0,1\n")
    assert [each.gold for each in labeled_examples(MultiLabel().reader, tmp_path / "a.csv")] == [("joy",), ("fear",)]
