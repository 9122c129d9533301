from __future__ import annotations

import io
from typing import Any

import pytest

from bertie.base import console
from bertie.base.errors import UserError
from bertie.files.formats import read_records


def cells(content: str | bytes) -> list[Any]:
    content = content.encode() if isinstance(content, str) else content
    return [record for _, record in read_records("csv", "a.csv", io.BytesIO(content))]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ('text;label\r\n"Great, loved it";pos\r\n"so; so";neg\r\n', "semicolons"),
        ("text;label\nGreat, loved it;pos\nso so;neg\n", "semicolons"),
        ("text\tlabel\na|b\tpos\n", "tabs"),
        ("text|label\na; b|pos\n", "vertical bars"),
        ("sep=;\r\ntext;label\r\na;pos\r\n", "semicolons, as its first line says"),
        ("text;label\na;pos\nb\nc;neg\n", "semicolons"),
        ("text;label\n", "semicolons"),
    ],
)
def test_what_separates_cells_is_found_and_said(
    mark: str, content: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    console_lines = f"a.csv: cells are separated by {named}\n"
    console.info_once.cache_clear()
    found = cells(mark + content)
    assert all(set(row) == {"text", "label"} for row in found if isinstance(row, dict))
    assert sum(not isinstance(row, dict) for row in found) == content.count("\nb\n")
    assert capsys.readouterr().err == console_lines


@pytest.mark.parametrize(
    ("content", "first"),
    [
        ("text;raw,label\na;b,pos\n", {"text;raw": "a;b", "label": "pos"}),
        ("text | raw\nno bar\nnone either\n", {"text | raw": "no bar"}),
        ('"text; full",label\na,pos\n', {"text; full": "a", "label": "pos"}),
        ("a=b,label\nx,pos\n", {"a=b": "x", "label": "pos"}),
    ],
)
def test_commas_go_first(content: str, first: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cells(content)[0] == first
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text;label|id\na;b|c\n", "semicolons or vertical bars"),
        ("text;label\na;b;c\nd,e\n", "semicolons, but not all rows"),
        ("sep=#\ntext#label\n", "is not a separator"),
        (b"gr\xf6\xdfe;label\na;pos\n", r"a.csv:1: not UTF-8 \(byte 0xf6\): convert"),
    ],
)
def test_doubts_name_the_separator_and_the_remedy(content: str | bytes, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        cells(content)
