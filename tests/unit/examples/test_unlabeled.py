from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.unlabeled import UnlabeledReader


def read(path: Path, content: str | bytes, **columns: Any) -> list[Any]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(UnlabeledReader(**columns).stream(path))


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def test_a_line_of_txt_is_a_text(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbfone\r\n\n caf\xc3\xa9 \xe2\x80\xa8 x\nbad \xff\nlast"
    found = read(tmp_path / "a.txt", content)
    assert found[:3] == ["one", "", " café \u2028 x"]
    assert "a.txt:4: not UTF-8" in str(found[3])
    assert found[4:] == ["last"]


def test_a_line_of_stdin_is_a_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "typed").write_text("one\n\ntwo words")
    monkeypatch.setattr("bertie.examples.rows.STDIN_DEVICE", tmp_path / "typed")
    assert list(UnlabeledReader().stream(Path("-"))) == ["one", "", "two words"]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", 'id\tSentence\n1\ta "b\n2\tc\n', ['a "b', "c"]),
        ("a.csv", 'text,label\n"a, b",1\n"c\nd",0\n', ["a, b", "c\nd"]),
        ("a.tsv", "gj04\t1\t\tOur friends.\ngj04\t0\t*\tThey.\n", ["Our friends.", "They."]),
        ("a.tsv", "text\tn\na\t1\n\t\nb\t2\n\n", ["a", "", "b"]),
        ("a.jsonl", lines({"text": "a"}, {"text": "b", "more": 1}), ["a", "b"]),
        ("a.jsonl", lines({"tokens": ["a", "b"]}, {"tokens": []}), [("a", "b"), ()]),
        ("a.conllu", "# c\n1-2\tdu\n1\tde\tde\n2\tle\tle\n\n1\tx\tx\n", [("de", "le"), ("x",)]),
        ("a.conll", "a B-x\nb O\n\n-DOCSTART- O\n\nc O\n", [("a", "b"), ("c",)]),
    ],
)
def test_formats(tmp_path: Path, name: str, content: str, expected: list[Any]) -> None:
    assert read(tmp_path / name, content) == expected


def test_errors_among_values_stay() -> None:
    error = UserError("a broken row")
    assert list(UnlabeledReader().values([{"text": "a"}, error, ("b",)])) == ["a", error, ("b",)]


def test_named_columns(tmp_path: Path) -> None:
    assert read(tmp_path / "a.tsv", "text\tother\nx\ty\n", text="other") == ["y"]
    assert read(tmp_path / "a.conll", "1 a\n2 b\n", word=1) == [("a", "b")]


def test_bad_rows_stay_in_their_place(tmp_path: Path) -> None:
    rows = [{"text": "a"}, {"text": None}, {"other": 1}, {"text": ["a"]}, {"text": "\ud800"}, {"text": "z"}]
    found = read(tmp_path / "a.jsonl", lines(*rows) + "{\n")
    assert [type(item) for item in found] == [str, UserError, UserError, UserError, UserError, str, UserError]
    assert str(found[3]).endswith("a.jsonl:4: 'text' is a list of words, where earlier rows have a text")
    found = read(tmp_path / "a.jsonl", lines({"text": None}, {"text": "a"}))
    assert [type(item) for item in found] == [UserError, str]
    found = read(tmp_path / "a.tsv", "text\tn\na\t1\nb\nc\t3\n")
    assert [type(item) for item in found] == [str, UserError, str]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "a.tsv",
            "a\tb\n1\t2\n",
            {},
            "cannot tell which column is the text; its columns are: a, b. Name one with --text",
        ),
        ("a.jsonl", lines({"text": "x"}), {"text": "y"}, "no column 'y'; its columns are: text"),
        ("a.json", "", {}, r"give a file of one of these formats: \.txt, \.jsonl, .*; or \.conllu"),
    ],
)
def test_unclear_columns_and_unknown_formats_are_refused(
    tmp_path: Path, name: str, content: str, columns: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read(tmp_path / name, content, **columns)
