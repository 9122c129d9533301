"""`bertie data inspect`: what every task reads from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from bertie.cli import main
from bertie.errors import UserError
from bertie.tasks import AnyTask, Classify
from bertie.tasks.data.texts import Example
from bertie.tasks.inspect_data import LONGEST, MAX_KINDS, Lengths, inspect_data, kinds_that_read, lines_of

ROWS: dict[str, dict[str, Any]] = {
    "classify": {"text": "a b c", "label": "x"},
    "regress": {"text": "a b c", "score": 1.5},
    "multi_label": {"text": "a b c", "labels": ["x", "y"]},
    "choose": {"context": "a b", "endings": ["c", "d"], "label": 1},
    "tag": {"tokens": ["a", "b", "c"], "tags": ["O", "B-X", "O"]},
    "span": {"question": "a", "context": "b c", "answers": ["c"]},
    "relate": {"text": "<e1>a</e1> b <e2>c</e2>", "relation": "x"},
    "embed": {"text": "a", "text_pair": "b c", "score": 1},
}


def test_every_task(tmp_path: Path) -> None:
    assert {task().kind for task in get_args(AnyTask)} == set(ROWS)
    for kind, row in ROWS.items():
        path = tmp_path / f"{kind}.jsonl"
        path.write_text(json.dumps(row) + "\n" + "{\n")
        found = inspect_data(kind, path)
        assert (found["examples"], found["skipped"], found["unlabeled"]) == (1, 1, 0), kind
        assert found["words"]["longest"] == 3
        assert sum(found["labels"].values()) == len(row.get("tags") or row.get("labels") or [1])
        assert found["reasons"][0]["first"].startswith(f"{path}:2: not valid JSON")
        assert inspect_data(kind, [row])["labels"] == found["labels"]
        assert found["first"][0].keys().isdisjoint({"source", "places", "lines"})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.csv"
    path.write_text("premise,hypothesis,label\n" + "".join(f"a b,c,{label}\n" for label in (0, 1, 2, -1, "", 1)))
    assert main(["data", "inspect", str(path), "--task", "classify", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["columns"] == {"text": "premise", "second text": "hypothesis", "label": "label"}
    assert result["labels"] == {"1": 2, "0": 1, "2": 1, "-1": 1}
    assert result["unknown"] == ["-1"]
    assert result["reasons"] == [{"reason": "no label", "rows": 1, "first": f"{path}:6: no label"}]
    for line in (
        "5 examples, 1 row skipped",
        "second text: hypothesis",
        "labels: 1 2, 0 1, 2 1, -1 1",
        "-1: means that the label is unknown; 1 are left out",
        "words of an example: mean 3.0, median 3, 90 % 3, 99 % 3, longest 3",
        "first: text 'a b', text_pair 'c', label '0'",
        f"skipped 1: {path}:6: no label",
    ):
        assert line in captured.err
    assert main(["data", "inspect", str(path), "--task", "classify"]) == 0
    plain = capsys.readouterr()
    assert captured.err == plain.err + plain.out
    assert plain.out.startswith("5 examples, 1 row skipped")


def test_a_file_without_a_kind_is_told_which_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, row in ROWS.items():
        path = tmp_path / f"{kind}.jsonl"
        path.write_text(json.dumps(row) + "\n")
        assert kind in kinds_that_read(path)
    assert main(["data", "inspect", str(tmp_path / "tag.jsonl")]) == 2
    assert "tag.jsonl stands where the kind of task belongs; its columns fit tag. Say it" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path / "none.csv")]) == 2
    assert "none.csv' is no kind of task, which stands before the file, and no file: the kinds are classify, " in (
        capsys.readouterr().err
    )
    path = tmp_path / "plain.txt"
    path.write_text("word\n")
    assert main(["data", "inspect", str(path)]) == 2
    assert "its columns fit no task without flags. Say it first, or with --task KIND" in capsys.readouterr().err


def test_what_is_uncertain_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the counts that decide are seen."""
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\nb,none\n")
    assert inspect_data("classify", path)["labels"] == {"x": 1, "none": 1}
    assert "the label 'none' could mean that the label is unknown" in capsys.readouterr().err


def test_summaries_have_a_fixed_size() -> None:
    rows = 3 * MAX_KINDS

    def examples() -> Iterator[Example]:
        for number in range(rows):
            yield Example("a", None, f"x{number}", "f")

    found = inspect_data(Classify(), examples())
    assert (len(found["labels"]), found["other_labels"]) == (MAX_KINDS, rows - MAX_KINDS)
    assert "20,000 of still others" in "".join(lines_of(found))
    lengths = Lengths()
    for length in range(3 * LONGEST):
        lengths.add(length)
    assert len(lengths.counts) == LONGEST + 1
    assert lengths.summary()["longest"] == 3 * LONGEST - 1
    with pytest.raises(UserError, match="the examples: no examples in it"):
        inspect_data("classify", [])
