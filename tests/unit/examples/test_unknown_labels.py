"""Labels that mean that the label is unknown, and other readings of a column that bertie does not guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.labels import LabelRules
from bertie.examples.unlabeled import UnlabeledReader
from bertie.tasks import AnyTask, Classify, Embed, MultiLabel, Regress
from bertie.tasks.scoring import labeled_examples, score


def read(task: AnyTask, tmp_path: Path, *labels: Any, **columns: Any) -> list[Any]:
    """Read a file with these labels, and the same rows in memory, which must give the same."""
    rows = [{"text": f"t{number}", **columns, "label": label} for number, label in enumerate(labels)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = labeled_examples(task.reader, path)
    in_memory = labeled_examples(task.reader, [row for row in rows if row["label"] == row["label"]])  # without NaN
    assert [each.texts for each in in_memory] == [each.texts for each in found]
    return [each.gold for each in found]


@pytest.mark.parametrize(
    ("labels", "markers"),
    [
        ({"0", "1", "2", "-1"}, {"-1"}),  # SNLI
        ({"0.0", "1.0", "2.0", "-1.0"}, {"-1.0"}),  # the same, written by pandas
        ({"entailment", "neutral", "contradiction", "-"}, {"-"}),  # MNLI
        ({"-1"}, {"-1"}),  # test sets of GLUE
        ({"1", "-1"}, set()),  # two classes
        ({"+", "-"}, set()),
        ({"-2", "-1", "0", "1"}, set()),
        ({"a", "b"}, set()),
    ],
)
def test_what_is_certain_is_taken(labels: set[str], markers: set[str]) -> None:
    assert LabelRules().unknown(labels, "f") == markers


@pytest.mark.parametrize(
    "labels",
    [
        {"-1", "0", "1"},
        {"-", "a", "b"},
        {"?", "a"},
        {"N/A", "a"},
        {"-2", "-1", "0", "null"},
    ],
)
def test_what_is_not_certain_is_asked_about(labels: set[str]) -> None:
    marker = max(label for label in labels if label.lower() in ("-1", "-", "none", "null", "?", "n/a"))
    with pytest.raises(
        UsageError, match=f"f: the label '{'[?]' if marker == '?' else marker}' could mean.*--task.no-label"
    ):
        LabelRules().unknown(labels, "f")
    assert LabelRules(no_label=(marker,)).unknown(labels, "f") == {marker}
    assert LabelRules(tuple(labels)).unknown(labels, "f") == set()
    assert LabelRules(tuple(labels - {marker})).unknown(labels, "f") == {marker}  # it is certainly none of the classes


def test_unknown_labels_are_left_out_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(Classify(), tmp_path, 0, 1, -1, 2, -1) == [("0",), ("1",), ("2",)]
    assert "a.jsonl: left out 2 of 5 examples, whose label '-1' means that it is unknown" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"--task\.no-label=-1 if it does, or name all classes"):
        read(Classify(), tmp_path, 0, 1, -1)
    assert read(Classify(no_label=("-1",)), tmp_path, 0, 1, -1) == [("0",), ("1",)]
    assert read(Classify(labels=("-1", "0", "1")), tmp_path, 0, 1, -1) == [("0",), ("1",), ("-1",)]
    assert read(MultiLabel(no_label=("?",)), tmp_path, ["a"], ["?"], ["a", "b"]) == [("a",), ("a", "b")]
    with pytest.raises(UsageError, match="the label 'none' could mean"):
        read(MultiLabel(), tmp_path, "a", "none")
    with pytest.raises(UserError, match="every label is '-1', which means that it is unknown"):
        read(Classify(), tmp_path, -1, -1)


@pytest.mark.parametrize("task", [Regress(), Embed()])
def test_a_score_of_minus_1_is_asked_about(tmp_path: Path, task: Regress | Embed) -> None:
    pair = {"text_pair": "p"} if task.kind == "embed" else {}
    with pytest.raises(UsageError, match=r"--task\.no-label=-1 if it does, or --task\.no-label nan if it is a score"):
        read(task, tmp_path, 0.5, 3, -1, **pair)
    assert read(task, tmp_path, 0.5, -0.5, -1, **pair) == [("0.5",), ("-0.5",), ("-1",)]
    keeping, leaving = (type(task)(no_label=(each,)) for each in ("nan", "-1"))
    assert read(keeping, tmp_path, 0.5, 3, -1, **pair) == [("0.5",), ("3",), ("-1",)]
    assert read(leaving, tmp_path, 0.5, 3, -1, **pair) == [("0.5",), ("3",)]


def test_predictions_for_unknown_labels_are_not_scored(tmp_path: Path) -> None:
    """`bertie predict` answers every row."""
    data, predictions = tmp_path / "a.jsonl", tmp_path / "p.jsonl"
    rows = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, -1, 2, 1)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    predictions.write_text("".join(json.dumps({"label": label}) + "\n" for label in "0020"))
    assert score("classify", data, predictions)["scores"]["accuracy"] == 2 / 3
    given = [{"label": label} for label in "0020"]
    assert score("classify", rows, given)["scores"]["accuracy"] == 2 / 3


@pytest.mark.parametrize(("labels", "kinds"), [((1, "x"), "text.*a number"), ((0, True), "true or false.*a number")])
def test_labels_of_two_types_are_refused(tmp_path: Path, labels: tuple[Any, ...], kinds: str) -> None:
    with pytest.raises(UserError, match=rf"a\.jsonl:2: the label .* is {kinds}: write all labels in the same way"):
        read(Classify(), tmp_path, *labels)
    assert read(Regress(), tmp_path, 1, "0.5") == [("1",), ("0.5",)]  # both are numbers


def test_scores_are_no_classes_and_classes_no_scores(tmp_path: Path) -> None:
    examples = labeled_examples(Classify().reader, [{"text": "a", "label": label} for label in (3.8, 2)])
    with pytest.raises(UsageError, match=r"numbers such as 3\.8\. For scores.*finetune regress.*--task\.labels"):
        Classify().fit(examples)
    assert Classify(labels=("2", "3.8")).fit(examples).labels == ("2", "3.8")
    cases = (("012", "text,text_pair"), ("01", "premise,hypothesis"), (("-1", *"012"), "text,text_pair"))  # -1: unknown
    for labels, names in cases:
        path = tmp_path / "a.csv"
        path.write_text(f"{names},label\n" + "".join(f"a,b,{label}\n" for label in labels))
        with pytest.raises(UsageError, match=r"'label' could be classes or scores: 0, 1.*--task\.label label"):
            labeled_examples(Embed().reader, path)
        rows = [dict(zip([*names.split(","), "label"], ("a", "b", float(label)), strict=True)) for label in labels]
        with pytest.raises(UsageError, match=r"the examples: the numbers of 'label' could be classes or scores"):
            labeled_examples(Embed().reader, rows)
    assert len(read(Embed(label="label"), tmp_path, 0, 1, 2, text_pair="p")) == 3


def test_a_written_list_is_no_label_and_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1: the label is a list, \['a', 'b'\].*multi_label learns several"):
        read(Classify(), tmp_path, "['a', 'b']")
    assert read(Classify(), tmp_path, "[a]", "b") == [("[a]",), ("b",)]
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps({"text": "['a', 'list', 'of', 'words']", "label": "x"}))
    with pytest.raises(UsageError, match=r"'text' is a list that was written as text.*--task\.text text"):
        labeled_examples(Classify().reader, path)
    assert len(labeled_examples(Classify(text="text").reader, path)) == 1
    for read_all in (Classify().reader.stream, lambda path: Classify().reader.values([json.loads(path.read_text())])):
        with pytest.raises(UsageError, match="'text' is a list that was written as text"):
            list(read_all(path))
    assert len(list(Classify(text="text").reader.stream(path))) == 1  # a model that was trained on such texts
    assert len(list(Classify().reader.values(["['a', 'b']"]))) == 1  # a text, whatever it looks like
    (tmp_path / "c.txt").write_text("['a', 'b']\n")
    assert len(list(Classify().reader.stream(tmp_path / "c.txt"))) == 1
    path.write_text(json.dumps({"text": "[deleted]", "label": "x"}))
    assert len(labeled_examples(Classify().reader, path)) == 1


def test_columns_that_differ_in_case_are_asked_about() -> None:
    for row, flag in (
        ({"Text": "a", "text": "b"}, "--task.text"),
        ({"text": "a", "Label": 1, "label": 2}, "--task.label"),
    ):
        with pytest.raises(UsageError, match=flag):
            list(Classify().reader.values([row], labeled=True))
    with pytest.raises(UsageError, match="cannot tell which column is the text"):
        list(UnlabeledReader().values([{"Text": "a", "text": "b"}]))


def test_thirty_columns_of_labels_of_which_one_is_text(tmp_path: Path) -> None:
    names = [f"l{number}" for number in range(30)]
    row = ["0"] * 30
    path = tmp_path / "a.csv"
    path.write_text("\n".join([",".join(["text", *names]), ",".join(["a", *row]), ",".join(["b", *row[:-1], "note"])]))
    with pytest.raises(UsageError, match=r"a\.csv:3: the column 'l29' has 'note', but a column of a label has 0 or 1"):
        labeled_examples(MultiLabel().reader, path)
    path.write_text("\n".join([",".join(["text", *names]), ",".join(["a", *row[:-1], ""])]))
    with pytest.raises(UsageError, match=r"a\.csv:2: the column 'l29' has an empty cell"):
        labeled_examples(MultiLabel().reader, path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_named(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\né,a\n".encode(encoding))
    with pytest.raises(UserError, match=r"UTF-(16|32).*: convert the file to UTF-8 first"):
        labeled_examples(Classify().reader, tmp_path / "a.csv")


def test_names_of_labels_in_another_column_are_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label,label_text\na,0,neg\nb,1,pos\n")
    columns = {"text": "text", "label": "label", "unused": "label_text"}
    assert Classify().reader.columns(path) == columns
    assert [each.label for each in labeled_examples(Classify(label="label_text").reader, path)] == ["neg", "pos"]


@pytest.mark.parametrize(
    ("labels", "stated", "kept"),
    [
        ((0.5, 3.2, -1.0), "-1", ["0.5", "3.2"]),
        ((0, 1, -1), "-1.0", ["0", "1"]),
        (("0.0", "1.0", "-1.0"), "-1", ["0.0", "1.0"]),
        ((1, 2, -99.0), "-99", ["1", "2"]),
        (("x", "y", "None"), "none", ["x", "y"]),
        (("x", "y", "X"), "X", ["x", "y"]),
    ],
)
def test_a_stated_marker_may_be_written_in_other_ways(
    tmp_path: Path, labels: tuple[Any, ...], stated: str, kept: list[str]
) -> None:
    numbers = all(not isinstance(label, str) for label in labels)
    for task in (Classify, MultiLabel, *([Regress] if numbers else [])):
        found = read(task(no_label=(stated,)), tmp_path, *labels)
        assert found == [(label,) for label in kept]


def test_a_stated_marker_must_occur_in_the_training_examples() -> None:
    rows = [{"text": "a", "label": label} for label in "xy"]
    for task in (Classify(no_label=("-1",)), MultiLabel(no_label=("-1",))):
        with pytest.raises(
            UsageError, match=r"the examples: task\.no_label is '-1', but no label has.*labels are x, y"
        ):
            labeled_examples(task.reader, rows, training=True)
        assert len(labeled_examples(task.reader, rows)) == 2  # as in most dev files
    assert len(labeled_examples(Classify(no_label=("nan",)).reader, rows, training=True)) == 2
    with pytest.raises(UserError, match=r"example 1: a label of 'none' means .* cannot stand beside others"):
        labeled_examples(MultiLabel(no_label=("none",)).reader, [{"text": "a", "labels": ["x", "none"]}])


@pytest.mark.parametrize("labels", [(1, 1.0), ("1", "1.0"), ("-2", "-2.0", "x")])
def test_one_number_is_not_two_classes(tmp_path: Path, labels: tuple[Any, ...]) -> None:
    for task in (Classify(), MultiLabel()):
        with pytest.raises(
            UserError, match=r"labels '-?\d' and '-?\d\.0' are the same number.*write all numbers in the same way"
        ):
            read(task, tmp_path, *labels)
    if "x" not in labels:
        assert len(read(Regress(), tmp_path, *labels)) == 2
    assert len(read(Classify(), tmp_path, "v1", "v1.0", "1.0")) == 3
