"""Collections in the formats of BEIR and TREC, and what is wrong with them: read as meant, or named in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertie.base.errors import UsageError, UserError
from bertie.examples.queries.collection import Collection, read_collection, read_grades, read_texts

DOCUMENTS = [{"_id": "d1", "title": "Cats", "text": "purr."}, {"_id": "d2", "title": "", "text": "Dogs bark."}]
QUERIES = [{"_id": "q1", "text": "what purrs?"}, {"_id": "q2", "text": "what barks?"}]
GRADES = {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}


def lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def folder(path: Path, qrels: str = "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td2\t1\n") -> Path:
    (path / "qrels").mkdir()
    lines(path / "corpus.jsonl", DOCUMENTS)
    lines(path / "queries.jsonl", QUERIES)
    (path / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    return path


def test_folder_of_beir(tmp_path: Path) -> None:
    collection = read_collection(folder(tmp_path)).judged()
    assert collection.documents == {"d1": "Cats\npurr.", "d2": "Dogs bark."}
    assert collection.queries == {"q1": "what purrs?", "q2": "what barks?"}
    assert collection.grades == GRADES
    assert collection.positives == {"q1": ["d1"], "q2": ["d2"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "q1\td1\t2\nq1\td2\t0\nq2\td2\t1\n"),
        ("a.tsv", "q1\t0\td1\t2\r\nq1\t0\td2\t0\r\nq2\t0\td2\t1\r\n"),
        ("a.tsv", "corpus-id\tquery-id\tscore\nd1\tq1\t2\nd2\tq1\t0\nd2\tq2\t1.0\n"),
        ("a.txt", "q1 0 d1 2\nq1 0 d2 0\n\nq2 0 d2 1\n"),
        ("a.qrels", "q1\tQ0\td1\t2\nq1 Q0  d2 0\nq2 Q0 d2 1\nq2 Q0 d2 1\n"),
        ("a.txt", "query-id corpus-id score\nq1 d1 2\nq1 d2 0\nq2 d2 1\n"),
        ("a.csv", "query_id,doc_id,relevance\nq1,d1,2\nq1,d2,0\nq2,d2,1\n"),
    ],
)
def test_forms_of_grades(tmp_path: Path, name: str, text: str) -> None:
    """With and without a header, TREC's four columns, CRLF, tabs and blanks, a line twice."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert read_grades(path) == GRADES


def test_texts_without_a_header_and_numbers_as_ids(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("1\twhat purrs?\n2\twhat barks?\n")
    assert read_texts(tmp_path / "queries.tsv") == {"1": "what purrs?", "2": "what barks?"}
    mixed = lines(
        tmp_path / "corpus.jsonl", [{"_id": 1, "text": "a"}, {"_id": "2", "text": "b"}, {"id": "2", "text": "b"}]
    )
    assert read_texts(mixed) == {"1": "a", "2": "b"}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"_id": 1, "text": "a"}, {"_id": "1", "text": "b"}], "the id '1' again, with another text"),
        ([{"_id": 1.5, "text": "a"}], "the id 1.5 is neither a text nor a whole number"),
        ([{"text": "a"}], r"no id \(_id, id, .*\): it has text"),
        ([{"_id": "a", "words": "x"}], "no text: it has _id, words"),
    ],
)
def test_bad_texts_are_named(tmp_path: Path, rows: list[dict], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_texts(lines(tmp_path / "corpus.jsonl", rows))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("q1 0 d1 2\nq1 0 d1 1\n", "query q1 and document d1 have the grades 2 and 1"),
        ("q1 0 d1 relevant\n", "the grade 'relevant' is not a whole number"),
        ("q1 d1 0.5\n", "the grade '0.5' is not a whole number"),
        ("q1 0 d1 2 x\n", "5 columns: expected query, document, grade"),
        ("\n", "no grades"),
    ],
)
def test_bad_grades_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=problem):
        read_grades(tmp_path / "a.txt")


def test_ids_that_do_not_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = read_collection(folder(tmp_path, "d1\tq1\t1\nd2\tq2\t1\n"))
    with pytest.raises(UserError, match="the columns of the grades are swapped"):
        swapped.judged()
    texts = {"documents": {"d1": "a", "d2": " "}, "queries": {"q1": "x", "q2": "y"}}
    with pytest.raises(UserError, match="no query of the grades is known: q9"):
        Collection(**texts, grades={"q9": {"d1": 1}}).judged()
    with pytest.raises(UserError, match="no document of the grades is known: d9"):
        Collection(**texts, grades={"q1": {"d9": 1}}).judged()
    with pytest.raises(UserError, match="no query has a document with a grade above 0"):
        Collection(**texts, grades={"q1": {"d1": 0}}).judged()
    with pytest.raises(UserError, match="no documents"):
        Collection({}, texts["queries"], {"q1": {"d1": 1}}).judged()
    grades = {"q1": {"d1": 1, "d9": 1}, "q2": {"d1": -1}, "q9": {"d1": 1}}
    kept = Collection(**texts, grades=grades, name="mine").judged()
    assert list(kept.queries) == list(kept.grades) == ["q1"]
    assert capsys.readouterr().err.splitlines() == [
        "warning: mine: unknown queries of grades, left out: 1 (q9)",
        "warning: mine: queries without a document with a grade above 0, left out: 1 (q2)",
        "warning: mine: positives that are no documents, so that no search can find them: 1 (d9)",
        "warning: mine: empty documents: 1 (d2)",
    ]
    Collection({"d1": "a"}, texts["queries"], {"q1": {"d1": 1}, "q2": {"d1": 1}}).judged()
    assert "the only positive of all queries: 1 (d1)" in capsys.readouterr().err


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no corpus: give a folder as BEIR's"):
        read_collection(queries=tmp_path / "queries.jsonl")
    folder(tmp_path)
    with pytest.raises(UsageError, match=r"no qrels/dev.jsonl or .tsv in it; its splits are: test"):
        read_collection(tmp_path, "dev")
