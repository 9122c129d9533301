"""Lists and dicts that pandas and NumPy wrote into the cells of tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import UserError
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.reader import Reader
from bertie.examples.squad import Answer, Question, Questions
from bertie.tasks import MultiLabel

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
values = st.recursive(
    texts | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(st.lists(values, max_size=3) | st.dictionaries(texts, values, max_size=3))
def test_what_json_and_python_print_is_read(value: Any) -> None:
    assert parse_cell(json.dumps(value), "x", "f:1") == value
    assert parse_cell(str(value), "x", "f:1") == value


@pytest.mark.parametrize(
    "cell",
    [
        *("['a' 'b']", "['a'\n 'b']", "array(['a'], dtype=object)", "{'text': array(['a'])}", "[np.str_('joy')]"),
        *("['a' 'a' ... 'b']", "['a', ...]", "['a'", "['a', 'b' 'c']", "[a]", "{'a' 1}", "['a'] x", "[$]", "('joy')"),
        *('[{"a": 1, "a": 1}]', "frozenset({'joy'})", "[" * 9999 + "]" * 9999),
    ],
)
def test_what_numpy_prints_and_broken_lists_are_refused(cell: str) -> None:
    with pytest.raises(UserError, match=r"^f:1: 'x' "):
        parse_cell(cell, "x", "f:1")


def read(path: Path, *rows: dict[str, Any]) -> list[Any]:
    path.write_text("".join(json.dumps({"question": "q", "context": "a [b] c d", **row}) + "\n" for row in rows))
    return list(Reader(Questions()).read(path))


def answers(found: list[Any]) -> list[tuple[Answer, ...] | None]:
    assert all(isinstance(each, Question) for each in found), found
    return [each.answers for each in found]


def test_written_answers(tmp_path: Path) -> None:
    written = "{'text': ['d'], 'answer_start': [8]}"
    rows = [written, "['c', 'd']", "[]", "{'text': [], 'answer_start': []}", '{"text": "d", "answer_start": 8}', "[b]"]
    found = answers(read(tmp_path / "a.jsonl", *({"answers": cell} for cell in rows)))
    assert found[:2] == [(Answer("d", 8),), (Answer("c", -1), Answer("d", -1))]
    assert found[2:] == [(), (), (Answer("d", 8),), (Answer("[b]", -1),)]  # the context has the last one
    [bad] = read(tmp_path / "a.jsonl", {"answers": "['c' ... 'd']"})
    assert "a.jsonl:1: 'answers' begins with a bracket" in str(bad)
    assert answers(read(tmp_path / "a.jsonl", {"answers": ["c"], "answer_start": [6]})) == [(Answer("c", 6),)]
    assert not is_written("[sic] a text")


def test_empty_answers_are_no_answer(tmp_path: Path) -> None:
    given = ["", " ", [], [""], {"text": [""], "answer_start": [0]}, [{"text": "", "answer_start": 0}]]
    assert answers(read(tmp_path / "a.jsonl", *({"answers": each} for each in given))) == [()] * 6
    assert answers(read(tmp_path / "a.jsonl", {"answers": ["", "d"]})) == [(Answer("d", -1),)]


@pytest.mark.parametrize("cell", ["nan", "None", "null", "-", "N/A", "?"])
def test_an_answer_that_could_mean_none_is_asked_about(tmp_path: Path, cell: str) -> None:
    unclear, stated = read(
        tmp_path / "a.jsonl", {"answer": cell}, {"answer": cell, "answer_start": 0, "context": f"{cell} x"}
    )
    assert f'a.jsonl:1: the answer {cell!r} may mean "no answer": if so, leave the cell empty' in str(unclear)
    assert stated.answers == (Answer(cell, 0),)


def test_two_columns_of_answers_and_unknown_flags(tmp_path: Path) -> None:
    none, both = {"answers": [], "is_impossible": 1.0}, {"answers": ["c"], "answer": "d"}
    no, two, maybe = read(tmp_path / "a.jsonl", none, both, {"answers": ["c"], "is_impossible": "maybe"})
    assert no.answers == ()
    assert "could both be the answers" in str(two)
    assert "is_impossible is 'maybe', but must be true or false" in str(maybe)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("('joy', 'fear')", ["joy", "fear"]),
        ("{'joy', 'fear'}", ["fear", "joy"]),
        ("set()", []),
        ("()", []),
        ("[('a',), {'b': {'c'}}]", [["a"], {"b": ["c"]}]),
    ],
)
def test_tuples_and_sets_are_lists(cell: str, value: Any, tmp_path: Path) -> None:
    assert is_written(cell)
    assert parse_cell(cell, "x", "f:1") == value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        (tmp_path / "a.csv").write_text(f'text,labels\na,"{cell}"\nb,joy\n')
        assert [each.gold for each in MultiLabel().reader.read(tmp_path / "a.csv")] == [tuple(value), ("joy",)]


def test_text_in_round_brackets_is_no_tuple(tmp_path: Path) -> None:
    for cell in ("(other)", "(1990)", "('open'", "set (a)", "a (b, c)", "{1} (or so)"):
        assert not is_written(cell)
    (tmp_path / "a.csv").write_text("text,labels\na,(other)\nb,joy\n")
    assert [each.gold for each in MultiLabel().reader.read(tmp_path / "a.csv")] == [("(other)",), ("joy",)]
