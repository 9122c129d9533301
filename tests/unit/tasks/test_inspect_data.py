"""`bertie data inspect`: what every task reads from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertie.base import console
from bertie.base.config import kinds
from bertie.base.errors import UserError
from bertie.cli import main
from bertie.examples.tag_form import Scheme
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example
from bertie.tasks import AnyTask, Classify, Tag
from bertie.tasks import inspect_data as module
from bertie.tasks.inspect_data import LONGEST, MAX_KINDS, Lengths, inspect_data, kinds_that_read, lines_of
from bertie.tasks.scoring import labeled_examples

ROWS: dict[str, dict[str, Any]] = {
    "classify": {"text": "a b c", "label": "x"},
    "regress": {"text": "a b c", "score": 1.5},
    "multi_label": {"text": "a b c", "labels": ["x", "y"]},
    "choose": {"context": "a b", "endings": ["c", "d"], "label": 1},
    "tag": {"tokens": ["a", "b", "c"], "tags": ["O", "B-X", "O"]},
    "span": {"question": "a", "context": "b c", "answers": ["c"]},
    "relate": {"text": "<e1>a</e1> b <e2>c</e2>", "relation": "x"},
    "embed": {"text": "a", "text_pair": "b c", "score": 1},
    "rerank": {"query": "a", "document": "b c", "label": 1},
    "examples.own_task:Ordinal": {"text": "a b c", "label": "3"},
}


TABLES = [
    ("tag", "a.conll", "a X O\nb X B-Y\n", {"words (column, from 0)": "0", "tags (column, from 0)": "2"}),
    ("tag", "a.jsonl", '{"text": "a", "spans": []}\n', {"text": "text", "spans": "spans"}),
    (
        "tag",
        "bad first row.jsonl",
        '{"id": 1}\n{"tokens": ["a"], "tags": ["O"]}\n',
        {"words": "tokens", "tags": "tags"},
    ),
    ("tag", "b.jsonl", '{"words": ["a"], "ner": ["O"]}\n', {"words": "words", "tags": "ner"}),
    (
        "relate",
        "a.csv",
        "text,e1_start,e1_end,e2_start,e2_end,relation\na b,0,1,2,3,x\n",
        {"text": "text", "spans": "e1_start, e1_end, e2_start, e2_end", "label": "relation"},
    ),
]


@pytest.mark.parametrize(("kind", "name", "content", "columns"), TABLES)
def test_columns_of_words_and_spans(
    kind: str, name: str, content: str, columns: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    assert inspect_data(kind, tmp_path / name)["columns"] == columns


def test_every_task(tmp_path: Path) -> None:
    assert {*kinds(AnyTask), "examples.own_task:Ordinal"} == set(ROWS)
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
        assert json.loads(json.dumps(found))["first"]


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
        "columns: text 'premise', second text 'hypothesis', label 'label'",
        "labels: 1 2, 0 1, 2 1, -1 1",
        "-1: means that the label is unknown; 1 are left out",
        "words of an example: mean 3.0, median 3, 90 % up to 3, 99 % up to 3, longest 3",
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
        assert kind in kinds_that_read(path) or kind not in kinds(AnyTask)
    assert main(["data", "inspect", str(tmp_path / "tag.jsonl")]) == 2
    assert "tag.jsonl: its columns fit tag. Use bertie data inspect TASK" in capsys.readouterr().err
    assert main(["data", "inspect", str(tmp_path / "tga.jsonl")]) == 2
    assert f"tga.jsonl': did you mean '{tmp_path / 'tag.jsonl'}'?" in capsys.readouterr().err
    assert main(["data", "inspect", "nothing"]) == 2
    assert "unknown task or file 'nothing'; tasks: classify, " in capsys.readouterr().err
    path = tmp_path / "plain.txt"
    path.write_text("word\n")
    assert main(["data", "inspect", str(path)]) == 2
    assert "its columns fit no task without flags. Use bertie data inspect classify" in capsys.readouterr().err


def test_what_is_uncertain_is_summarized_too(tmp_path: Path) -> None:
    """So that the counts that decide are seen."""
    path = tmp_path / "a.csv"
    path.write_text("text,label\na,x\nb,none\n")
    found = inspect_data("classify", path)
    assert found["labels"] == {"x": 1, "none": 1}
    assert "the label 'none' could mean that the label is unknown" in found["refused"]


def test_summaries_have_a_fixed_size() -> None:
    rows = 3 * MAX_KINDS

    def examples() -> Iterator[Example]:
        for number in range(rows):
            yield Example("a", None, f"x{number}", "f")

    found = inspect_data(Classify(), examples())
    assert (len(found["labels"]), found["other_labels"]) == (MAX_KINDS, rows - MAX_KINDS)
    assert "20,000 with other labels" in "".join(lines_of(found))
    lengths = Lengths()
    for length in range(3 * LONGEST):
        lengths.add(length)
    assert len(lengths.counts) == LONGEST + 1
    assert lengths.summary()["longest"] == 3 * LONGEST - 1
    with pytest.raises(UserError, match="the examples: no examples in it"):
        inspect_data("classify", [])


BIO = "B-PER I-PER O|" * 12
TAGGED: list[tuple[Scheme, str, str]] = [
    ("", BIO, "tags: BIO (IOB2), such as B-PER; kinds of entities: PER"),
    ("", "DET NOUN VERB O", "tags: they mark no entities, so the metric is the accuracy of words"),
    ("none", BIO, ""),
    (
        "",
        f"{BIO}O I-PER",
        "I without a B before it begins an entity, as in conlleval: 1 place, first a.conll:50, 'I-PER'",
    ),
    ("", f"{BIO}B-PER I_PER", "a.conll:50: the tag 'I_PER' does not fit BIO (IOB2)"),
    ("", "N_PL V_SG B_X O|" * 20, "a.conll:3: the tag 'B_X' looks like BIO, but most tags do not, such as 'N_PL'"),
    ("iob1", BIO, 'task.scheme is "iob1", but the tags are BIO (IOB2): a.conll:1'),
    ("", "3 4 3", "the tags are numbers (3, 4): name them in the order of their numbers"),
    ("", "O O|O", "every word has the tag 'O' (a.conll:1"),
]


@pytest.mark.parametrize(("scheme", "tags", "message"), TAGGED)
@pytest.mark.parametrize("suffix", ["conll", "jsonl"])
def test_tags_are_inspected_as_fine_tuning_reads_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scheme: Scheme, tags: str, message: str, suffix: str
) -> None:
    sentences = [sentence.split() for sentence in tags.split("|") if sentence]
    path = tmp_path / f"a.{suffix}"
    if suffix == "conll":
        lines = ["".join(f"w{i}x{j} {tag}\n" for j, tag in enumerate(each)) for i, each in enumerate(sentences)]
        path.write_text("\n".join(lines))
    else:
        path.write_text("".join(json.dumps({"tokens": ["w"] * len(each), "tags": each}) + "\n" for each in sentences))
    task = fitted = Tag(scheme=scheme)
    refused = ""
    try:
        fitted = task.fit(labeled_examples(task.reader, path, training=True))
    except UserError as error:
        refused = str(error)
    told = capsys.readouterr().err
    console.info_once.cache_clear()
    found = inspect_data(task, path)
    if refused:
        assert found["refused"] == refused
    else:
        assert replace(task, **found["fitted"]) == fitted
    assert capsys.readouterr().err == told
    assert message in told + refused or suffix == "jsonl"


def test_tags_that_fine_tuning_refuses_are_refused() -> None:
    rows = [{"tokens": ["a", "b"], "tags": ["O", "B-X"]}]
    found = inspect_data(Tag(labels=("O", "B-Y")), rows)
    assert found["refused"] == "example 1, word 2: the tag 'B-X' is not in task.labels: O, B-Y"
    assert inspect_data(Tag(class_weights={"O": 1}), rows)["refused"].startswith("task.class_weights")


def test_tags_are_counted_in_fixed_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    counts = Tag().counts(TaggedSentence(("a", "b"), ("B-X", "O"), str(number)) for number in range(99))
    assert (len(counts), len(counts.places)) == (3, 3)
    monkeypatch.setattr(module, "MAX_COUNTS", 10)
    found = inspect_data("tag", [{"tokens": ["a"], "tags": [f"B-{number}"]} for number in range(99)])
    assert {"fitted", "refused"}.isdisjoint(found)
    assert "its labels are too many and too diverse" in capsys.readouterr().err
