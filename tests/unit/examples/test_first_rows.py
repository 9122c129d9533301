"""A bad row costs only itself, also at the start of a file; a problem of the whole file is named."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.choices import Choices
from bertie.examples.left_out import valid_examples
from bertie.examples.reader import Reader
from bertie.examples.rows import PROBED_ROWS
from bertie.examples.sentences import TaggedSentences
from bertie.examples.tagged import TaggedSentence
from bertie.examples.texts import Example, LabeledTexts
from bertie.examples.unlabeled import UnlabeledReader
from bertie.tasks import Choose, Embed, Regress

FOO = {"foo": 1}
TEXT = {"text": "a", "label": "x"}
PAIR = {"text": "a", "text_pair": "b", "score": 1.0}
CHOICE = {"context": "a", "endings": ["b", "c"], "label": 1}


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def errors(found: list[Any]) -> list[str]:
    return [str(item) for item in found if isinstance(item, UserError)]


READERS = [
    (Reader(LabeledTexts()).read, TEXT),
    (Reader(Choices()).stream, CHOICE),
    (UnlabeledReader().stream, TEXT),
]
NAMES = ["classify", "choose", "unlabeled"]


@pytest.mark.parametrize(("read", "good"), READERS, ids=NAMES)
def test_first_rows_without_the_columns_are_bad_rows(read: Any, good: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(FOO) + "{\n" + lines(FOO, good, FOO, good))
    found = list(read(path))
    assert [type(item) is UserError for item in found] == [True, True, True, False, True, False]
    for number in (1, 3, 5):
        assert str(found[number - 1]).startswith(f"{path}:{number}: ")
        assert number == 5 or "its columns are: foo" in str(found[number - 1])
    assert "a.jsonl:2: not valid JSON" in str(found[1])


@pytest.mark.parametrize(("read", "good"), READERS, ids=NAMES)
def test_columns_that_no_row_has_are_refused(read: Any, good: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines(FOO, FOO))
    with pytest.raises(UsageError, match=r"a\.jsonl.*cannot tell which column is the .*its columns are: foo"):
        list(read(path))
    write(path, lines(*[FOO] * (PROBED_ROWS - 1), good))
    assert len(list(read(path))) == PROBED_ROWS
    write(path, lines(*[FOO] * PROBED_ROWS, good))
    with pytest.raises(UsageError, match="cannot tell"):
        list(read(path))


@pytest.mark.parametrize(("read", "good"), READERS, ids=NAMES)
def test_a_bad_row_may_determine_the_columns(read: Any, good: dict[str, Any], tmp_path: Path) -> None:
    bad = {name: None if name in ("text", "context") else value for name, value in good.items()}
    found = list(read(write(tmp_path / "a.jsonl", lines(bad, FOO, good))))
    assert [type(item) is UserError for item in found] == [True, True, False]


def test_rows_of_one_text_do_not_determine_the_columns_of_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"text": "a"}, FOO, {"text": "a"}, PAIR))
    found = list(Embed().reader.read(path))
    assert [type(item) for item in found] == [UserError, UserError, UserError, Example]
    assert ["reads two texts" in item for item in errors(found)] == [True, False, True]


def test_a_named_label_that_the_first_row_lacks_costs_that_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", lines({"text": "a"}, {"text": "b", "topic": "x"}))
    error, example = Reader(LabeledTexts(label="topic")).read(path)
    assert str(error).startswith(f"{path}:1: no column 'topic'")
    assert isinstance(example, Example)


@pytest.mark.parametrize("task", [Regress(), Embed()], ids=["regress", "embed"])
def test_scores_that_cannot_be_trained_on_are_bad_rows(task: Regress | Embed, tmp_path: Path) -> None:
    scores = ["inf", "0x10", "1_000", "1", "1e200", "-2e15", "1e15", "-3", "0.5", "2", "4"]
    rows = "".join(f"a\tb\t{score}\n" for score in scores)
    path = write(tmp_path / "a.tsv", "text\ttext_pair\tscore\n" + rows)
    found = list(task.reader.read(path))
    assert [item.label for item in found if isinstance(item, Example)] == ["1", "1e15", "-3", "0.5", "2", "4"]
    assert errors(found) == [
        f"{path}:{line}: the label is {score!r}, which is {why}"
        for line, score, why in (
            (2, "inf", "not a finite number"),
            (3, "0x10", "not a finite number"),
            (4, "1_000", "not a finite number"),
            (6, "1e200", "too large: the maximum is ±1e15"),
            (7, "-2e15", "too large: the maximum is ±1e15"),
        )
    ]
    task.fit(valid_examples(task.reader.read(path), "a"))
    assert all(isinstance(item, Example) for item in task.reader.stream(path))  # labels are not required there
    with pytest.raises(UserError, match=r"here: the score '1e200', which is too large: the maximum is ±1e15"):
        task.fit([Example("a", "b", "1", "here"), Example("a", "b", "1e200", "here")])


def test_labels_are_not_scores_because_one_is_a_number(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\ttext_pair\tlabel\n" + "a\tb\tyes\n" * 3 + "a\tb\t1\n" + "a\tb\tyes\n" * 200)
    found = list(Embed().reader.read(path))
    assert len(found) == 204
    assert not errors(found)


def test_a_carriage_return_in_a_csv_cell_must_be_quoted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", b'text,label\n"x\ny",1\nbro\rken,1\nb,0\n')
    for content, line in ((b"bro\rken,1\n", 4), (b'"x\ny",b\rc\n', 5)):
        write(path, b'text,label\n"x\ny",1\n' + content + b"b,0\n")
        with pytest.raises(UserError, match=rf"a\.csv:{line}: .*\\r.* outside quotes: quote the cell, or"):
            list(Reader(LabeledTexts()).read(path))
    write(path, b'text,label\n"bro\rken",1\r\nb,0\r\n')
    assert [item.text for item in Reader(LabeledTexts()).read(path) if isinstance(item, Example)] == ["bro\rken", "b"]


def test_files_whose_lines_end_in_carriage_returns_are_refused(tmp_path: Path) -> None:
    for read in (Reader(TaggedSentences()).read, UnlabeledReader().stream):
        with pytest.raises(UserError, match=r": its lines end in \\r alone; convert"):
            list(read(write(tmp_path / "a.conll", b"text label\ra 1\rb 2")))


def test_a_carriage_return_inside_a_text_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", b"te\rxt\tlabel\na\r b\t1\n")
    [found] = Reader(LabeledTexts("te\rxt")).read(path)
    assert found.text == "a\r b"
    [line] = Reader(LabeledTexts()).stream(write(tmp_path / "a.txt", b"a\rb\n"))
    assert line.text == "a\rb"


@pytest.mark.parametrize("name", ["a.conll", "a.conllu"])
def test_a_malformed_first_line_costs_its_sentence(tmp_path: Path, name: str) -> None:
    good = "1 a O\n2 b O\n\n" if name == "a.conllu" else "a x O\nb x O\n\n"
    bad = "# note\n1 New York B-LOC\n2 x O\n\n" if name == "a.conllu" else "New York x B-LOC\nx x O\n\n"
    path = write(tmp_path / name, bad + good * 3)
    text = UnlabeledReader().stream(path)
    found = list(Reader(TaggedSentences()).stream(path))
    assert [type(item) for item in found] == [UserError] + [TaggedSentence] * 3
    first = 2 if name == "a.conllu" else 1
    message = f"{path}:{first}: 4 columns, where most lines have 3 (the sentence that starts in line {first})"
    assert str(found[0]) == message
    assert [type(item) for item in text] == [UserError] + [tuple] * 3


def test_the_header_is_the_first_line_of_the_usual_width(tmp_path: Path) -> None:
    [error, found] = Reader(TaggedSentences()).read(write(tmp_path / "a.conll", "made by X\n\nword tag\na O\n\n"))
    assert "a.conll:1: 3 columns, where most lines have 2" in str(error)
    assert found.words == ("a",)


def test_columns_may_follow_many_empty_lines_and_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conllu", "# c\n" * 200 + "\n" * 200 + "1 a O\n\n" * 200)
    assert sum(isinstance(item, TaggedSentence) for item in Reader(TaggedSentences()).stream(path)) == 200
    with pytest.raises(UserError, match=r"b\.conll is empty"):
        list(Reader(TaggedSentences()).stream(write(tmp_path / "b.conll", "")))


def test_conll_files_are_read_lazily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bertie.examples import conll

    read = 0

    def endless(path: Path) -> Any:  # noqa: ARG001
        nonlocal read
        while True:
            read += 2
            yield read - 1, "a O\n"
            yield read, "\n"

    monkeypatch.setattr(conll, "read_lines", endless)
    found = list(islice(Reader(TaggedSentences()).stream(write(tmp_path / "a.conll", "x")), 1000))
    assert len(found) == 1000
    assert read <= 2000 + 4 * PROBED_ROWS


@pytest.mark.parametrize(
    ("columns", "row", "message"),
    [
        ({"context": "label"}, CHOICE, "'label' is the context, so it cannot be the label"),
        ({"label": "endings"}, CHOICE, "'endings' holds endings, so it cannot be the label"),
        (
            {"context": "ending0"},
            {"ending0": "a", "ending1": "y", "label": 0},
            "'ending0' is the context, so it cannot be an",
        ),
    ],
)
def test_a_column_of_a_choice_has_one_use(
    columns: dict[str, Any], row: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Whether the column was named or found."""
    with pytest.raises(UsageError, match=rf"a\.jsonl.*{message}.*Choose with --task\.context"):
        list(Choose(**columns).reader.read(write(tmp_path / "a.jsonl", lines(row))))


def test_a_context_column_named_like_a_label(tmp_path: Path) -> None:
    """Another column is then the label, which may be missing for prediction."""
    reader = Reader(Choices(context="answer"))
    row = {"answer": "a", "endings": ["b", "c"]}
    [found] = reader.read(write(tmp_path / "a.jsonl", lines({**row, "gold": 1})))
    assert (found.context, found.label) == ("a", 1)
    [found] = reader.stream(write(tmp_path / "a.jsonl", lines(row)))
    assert (found.context, found.label) == ("a", None)


def test_a_column_without_a_name_is_neither_context_nor_label(tmp_path: Path) -> None:
    """pandas writes such a column, with the numbers of the rows."""
    path = write(tmp_path / "a.csv", ",prompt,ending0,ending1\n0,a,b,c\n1,a,b,c\n")
    for found in Reader(Choices()).stream(path):
        assert found.label is None
    with pytest.raises(UsageError, match="no label column; its columns are: prompt, ending0, ending1"):
        list(Reader(Choices()).read(path))
    with pytest.raises(UsageError, match="cannot tell which column is the context"):
        list(Reader(Choices()).stream(write(path, ",foo,ending0,ending1\n0,a,b,c\n")))


def test_only_regular_files_are_read() -> None:
    reading, writing = os.pipe()
    path = Path(f"/dev/fd/{reading}")
    for stream in (Reader(LabeledTexts()).stream, Reader(Choices()).stream, Reader(TaggedSentences()).stream):
        with pytest.raises(UsageError, match=rf"{path} is not a regular file: .*--input -"):
            list(stream(path))
    os.close(reading)
    os.close(writing)
    with pytest.raises(UsageError, match="no such file"):
        Reader(LabeledTexts()).stream(path)
