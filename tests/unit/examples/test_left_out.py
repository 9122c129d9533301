"""Rows that their annotator left out: no examples, and no mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import bertie
from bertie.base.errors import UserError
from bertie.examples.left_out import LeftOutError
from bertie.tasks import AnyTask, Choose, Classify, Embed, MultiLabel, Regress, Relate, Tag
from bertie.tasks.inspect_data import inspect_data
from bertie.tasks.scoring import labeled_examples

ROWS: list[tuple[AnyTask, dict[str, Any]]] = [
    (Classify(), {"text": "a", "label": "x"}),
    (Regress(), {"text": "a", "score": 1}),
    (MultiLabel(), {"text": "a", "labels": ["x"]}),
    (Choose(label="label"), {"question": "a", "choices": ["b", "c"], "label": 1}),
    (Tag(), {"tokens": ["a"], "tags": ["B-X"]}),
    (Tag(), {"text": "a", "spans": [{"start": 0, "end": 1, "label": "X"}]}),
    (Relate(), {"text": "<e1>a</e1> <e2>b</e2>", "label": "x"}),
    (Embed(), {"text": "a", "text_pair": "b", "score": 0.5}),
]
ANSWERS = ("Reject ", "accept", "ignore", None, "reject")


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("task", "row"), ROWS)
def test_every_task_leaves_them_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: AnyTask, row: dict[str, Any]
) -> None:
    rows = [{**row, "answer": answer} for answer in ANSWERS]
    path = write(tmp_path / "a.jsonl", rows)
    for source, where in ((path, str(path)), (rows, "the examples")):
        found = labeled_examples(task.reader, source, strict=True, training=True)
        assert len(found) == 2
        assert f"{where}: the annotator left out 3 rows (reject 2, ignore 1)" in capsys.readouterr().err
        with pytest.raises(UserError, match=r"the annotator left out all 2 rows \(reject 2\)"):
            labeled_examples(task.reader, write(path, rows[::4]) if source is path else rows[::4])
    assert inspect_data(task, path)["refused"] == f"{path}: the annotator left out all 2 rows (reject 2)"
    write(path, rows)
    assert [isinstance(each, LeftOutError) for each in task.reader.read(path)] == [True, False, True, False, True]
    plain = [each for each in task.reader.stream(path) if not isinstance(each, UserError)]
    assert [len(plain), len(list(task.reader.values(rows)))] == [5, 5], "predictions are for all rows"
    reasons = {each["reason"]: each["rows"] for each in inspect_data(task, path)["reasons"]}
    assert reasons == {"its annotator left it out: reject": 2, "its annotator left it out: ignore": 1}


def test_answers_of_another_meaning_are_no_marks(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": "x", "answer": answer} for answer in ("maybe", "Paris", "rejected", "", 3, ["accept"])
    ]
    assert len(labeled_examples(Classify().reader, write(tmp_path / "a.jsonl", rows), strict=True)) == 6
    asked = [{"text": "a", "answer": answer} for answer in ("accept", "reject", "ignore")]
    found = labeled_examples(Classify(label="answer").reader, asked)
    assert [example.label for example in found] == ["accept", "reject", "ignore"]
    chosen = [{"question": "a", "choices": ["accept", "reject"], "answer": "reject"}]
    assert [example.label for example in labeled_examples(Choose().reader, chosen)] == [1]


def test_predictions_for_all_rows_are_aligned(tmp_path: Path) -> None:
    """Predictions are made for every row, and those for rows that are left out or skipped count for nothing."""
    tags = ["B-X", "O", "B-X", "O", "B-X", "O"]
    gold = [{"tokens": ["a", "b"], "tags": [tag, "O"]} for tag in tags]
    gold[0]["answer"], gold[3]["answer"] = "reject", "ignore"  # type: ignore[assignment]
    gold[4]["tags"] = ["O"]
    path = write(tmp_path / "gold.jsonl", gold)
    assert len(list(Tag().reader.stream(path))) == 6
    said = [{"tokens": ["a", "b"], "tags": ["B-Y" if i in (0, 3, 4) else tag, "O"]} for i, tag in enumerate(tags)]
    predictions = write(tmp_path / "said.jsonl", said)
    found = bertie.score("tag", path, predictions)
    assert (found["examples"], found["scores"]["f1"], found["scores"]["accuracy"]) == (3, 1.0, 1.0)
    gold[4]["tags"] = ["B-Y", "O"]
    assert bertie.score("tag", write(path, gold), predictions, strict=True)["scores"]["f1"] == 1.0
    assert bertie.score("tag", gold, said, strict=True)["scores"]["f1"] == 1.0
    said[1]["tags"], said[2]["tags"] = said[2]["tags"], said[1]["tags"]
    assert bertie.score("tag", gold, said)["scores"]["f1"] < 1
    with pytest.raises(UserError, match="4 predictions for the 6 examples of"):
        bertie.score("tag", path, [each for i, each in enumerate(said) if i not in (0, 3)])


def test_cancelled_annotations_of_label_studio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    region = {"type": "labels", "value": {"start": 0, "end": 1, "labels": ["X"]}}
    good, bad = {"result": [region]}, {"result": [], "was_cancelled": True}
    tasks = [{"data": {"text": "a"}, "annotations": each} for each in ([good], [bad], [bad, good], [bad, bad])]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(tasks))
    assert [example.tags for example in labeled_examples(Tag().reader, path, strict=True)] == [("B-X",), ("B-X",)]
    assert "the annotator left out 2 rows (was_cancelled 2)" in capsys.readouterr().err
    assert [each.words for each in Tag().reader.stream(path) if not isinstance(each, UserError)] == [("a",)] * 4
    path.write_text(json.dumps([*tasks, {"data": {"text": "a"}, "annotations": []}]))
    with pytest.raises(UserError, match="example 5: it has no annotation"):  # nobody has seen it yet
        labeled_examples(Tag().reader, path, strict=True)
