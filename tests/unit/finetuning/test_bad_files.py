"""What a newcomer's file may have wrong: one line says it, before any training, and `bertie data inspect` says the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertie.cli import main
from bertie.tasks import Classify
from bertie.tasks.inspect_data import inspect_data
from bertie.tasks.scoring import labeled_examples


def table(*labels: object, header: str = "text,label") -> str:
    return f"{header}\n" + "".join(f"text {number},{label}\n" for number, label in enumerate(labels))


REFUSED = [
    ("one class", "classify", table("a", "a"), "every example has the label 'a' (a.csv:2 …): nothing to learn"),
    (
        "a class per row",
        "classify",
        table(*(f"id{number}" for number in range(12))),
        "every example has a label of its own (a.csv:2 …: 'id0', 'id1', 'id10' … and 9 more). For scores use regress; "
        "for classes choose another column with --task.label, or pass --task.labels",
    ),
    (
        "no header",
        "classify",
        "A long and fine film.,pos\nA long and bad film.,neg\n",
        "its columns are: A long and fine film., pos. Choose with --task.text and --task.label (of pairs also "
        "--task.text-pair); if these are cells of a row, add a first line with names, such as text,label",
    ),
    (
        "floats as classes",
        "classify",
        table(3.8, 3.8, 2.5, 1),
        "the labels are numbers such as 2.5. For scores use `bertie finetune regress`; for classes pass --task.labels",
    ),
    (
        "no label",
        "classify",
        table("a", "b", header="text,stars"),
        "a.csv: no label column; its columns are: text, stars.",
    ),
    ("no relation", "relate", "text,kind\na,b\n", "a.csv: no label column; its columns are: text, kind."),
    (
        "one text",
        "embed",
        "text,label\na,1\n",
        "found 'text', but the task reads two texts; its columns are: text, label.",
    ),
    ("a typo", "classify --task.label lable", table("a"), "its columns are: text, label. Did you mean 'label'?"),
    ("two ways", "classify", table("1", "1.0", "2"), "the labels '1' and '1.0' are the same number, but would be two"),
    ("commas", "classify", "text,label\na, b,c\n", "a.csv:2: 3 columns, but the first line has 2: put cells with"),
]


@pytest.mark.parametrize(("flags", "content", "line"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_fine_tuning_and_inspection_refuse_a_file_in_the_same_words(
    flags: str, content: str, line: str, start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, [kind, *more] = tmp_path / "a.csv", flags.split()
    path.write_text(content, "utf-8")
    flags = f"--train {path} --dev {path} --model {start} --out {tmp_path / 'run'} --max-length 64"
    code = main(["finetune", kind, *more, *flags.split()])
    said = [error for error in capsys.readouterr().err.splitlines() if error.startswith("bertie: ")]
    assert code
    assert not (tmp_path / "run").exists()
    assert main(["data", "inspect", kind, str(path), *more]) in (1, 2)
    told = [error for error in capsys.readouterr().err.splitlines() if error.startswith("bertie: ")]
    assert [error.replace("fine-tuning refuses this file: ", "") for error in told] == said
    assert line in said[0]


def test_odd_texts_are_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    rows = ["same,x", "same,y", "other,x", ",x", "same,x", "  ,y", "equal,x", "equal,x", "more,x", "more,y"]
    path.write_text("\n".join(["text,label", *rows]), "utf-8")
    lines = [
        f"warning: {path}: 2 examples without text: a.csv:5, a.csv:7",
        f"warning: {path}: 2 texts with different labels, first a.csv:2 and a.csv:3: correct the labels",
    ]
    assert len(labeled_examples(Classify().reader, path, training=True)) == 10
    assert capsys.readouterr().err.splitlines() == lines
    assert "refused" not in inspect_data("classify", path)
    assert capsys.readouterr().err.splitlines() == lines


def test_lists_of_labels_in_another_order_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "a", "labels": labels} for labels in (["x", "y"], ["y", "x"])] + [{"text": "b", "labels": ["x"]}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "refused" not in inspect_data("multi_label", path)
    assert "different labels" not in capsys.readouterr().err


def test_the_first_try_may_have_a_label_per_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(table(*"abcdefghij"))
    assert "refused" not in inspect_data("classify", tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(table(*"abcdefghijka"))
    assert "refused" not in inspect_data("classify", tmp_path / "a.csv")
