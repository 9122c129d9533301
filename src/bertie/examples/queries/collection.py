"""Collections for retrieval: documents, queries, and grades of documents for queries. Read from BEIR folders and TREC files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bertie.base import console
from bertie.base.errors import UsageError, UserError, first_few, join_names, raise_error
from bertie.examples.rows import file_format, parse_finite, read_lines, read_rows
from bertie.files.sources import FORMATS

Grades = dict[str, dict[str, int]]
"""For each query the grades of documents, by their ids. A grade above 0 means relevant: a positive."""
_QUERY = ("query-id", "query_id", "qid", "query")
_DOCUMENT = ("corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "docno", "pid", "document")
_ID = ("_id", "id", *_QUERY[:3], *_DOCUMENT[:-1])
_TEXT = ("text", "contents", "body", "query", "question")
_GRADE = ("score", "relevance", "rel", "grade", "label")


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents, queries, and grades of documents for queries."""

    documents: dict[str, str]
    """The texts of the documents by their ids."""
    queries: dict[str, str]
    """The texts of the queries by their ids."""
    grades: Grades
    """The grades of judged documents for each query."""
    name: str = "collection"
    folder: Path | None = None
    """The folder as BEIR's that it was read from."""

    @cached_property
    def positives(self) -> dict[str, list[str]]:
        """For each query that has any, the ids of the documents with a grade above 0."""
        known = {query: [document for document, grade in of.items() if grade > 0] for query, of in self.grades.items()}
        return {query: documents for query, documents in known.items() if documents}

    def is_own(self, query: str) -> bool:
        """Return whether a query is a document with the same id, which was not judged: it contains the query's text."""
        return self.queries[query] in self.documents.get(query, "") and query not in self.grades[query]

    def judged(self) -> Collection:
        """Return the collection with the queries that have a positive only, in order. Says what is left out, and what is odd.

        Raises:
            UserError: There are no documents, or no query has a positive.
        """
        if not self.documents:
            raise UserError(f"{self.name}: no documents")
        self._require_known()
        kept = {query: text for query, text in self.queries.items() if query in self.positives}
        if not kept:
            raise UserError(f"{self.name}: no query has a document with a grade above 0")
        without = [query for query in self.grades if query in self.queries and query not in kept]
        empty = [document for document, text in self.documents.items() if not text.strip()]
        positive = {document for query in kept for document in self.positives[query]}
        missing = sorted(positive - self.documents.keys())
        self._warn("queries without a document with a grade above 0, left out", without)
        self._warn("positives that are no documents, so that no search can find them", missing)
        self._warn("empty documents", empty)
        self._warn("the only positive of all queries", sorted(positive) if len(positive) == 1 < len(kept) else [])
        return replace(self, queries=kept, grades={query: self.grades[query] for query in kept})

    def _require_known(self) -> None:
        """Raise UserError if no grade belongs to a query and a document. Warn of unknown queries."""
        documents = {document for of in self.grades.values() for document in of}
        unknown = [query for query in self.grades if query not in self.queries]
        if self.grades and len(unknown) == len(self.grades):
            if documents & self.queries.keys():
                raise UserError(
                    f"{self.name}: the columns of the grades are swapped: first the query, then the document"
                )
            raise UserError(f"{self.name}: no query of the grades is known: {first_few(unknown, len(unknown))}")
        self._warn("unknown queries of grades, left out", unknown)
        if self.grades and not documents & self.documents.keys():
            raise UserError(f"{self.name}: no document of the grades is known: {first_few(documents, len(documents))}")

    def _warn(self, what: str, ids: list[str]) -> None:
        if ids:
            console.warn(f"{self.name}: {what}: {len(ids):,} ({first_few(ids, len(ids))})")


def read_collection(
    folder: str | Path | None = None,
    split: str = "test",
    *,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    qrels: str | Path | None = None,
) -> Collection:
    """Read a collection from a folder as BEIR's, with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, or from files.

    Documents and queries are rows with an id and a text, and maybe a title, which goes before the text; or lines of an id, a tab
    and a text. Grades are rows with the names of BEIR, or without names: query, document, grade, or as in TREC's qrels: query,
    a column that is not read, document, grade.

    Args:
        folder: The folder. None: all files are given.
        split: Name of the file with the grades: usually train, dev or test.
        corpus: A file in place of the folder's.
        queries: The same for the queries.
        qrels: The same for the grades.

    Raises:
        UsageError: A file is missing.
        UserError: A file cannot be read, or contradicts itself.
    """
    root = None if folder is None else Path(folder)
    files = [_found(root, name, file) for name, file in (("corpus", corpus), ("queries", queries))]
    documents, texts = map(read_texts, files)
    grades = read_grades(_found(root, f"qrels/{split}", qrels))
    name = (root or files[0].parent).absolute().name + f", {split}" * (qrels is None)
    return Collection(documents, texts, grades, name, root)


def split_of(path: Path) -> tuple[Path, str] | None:
    """Return the folder and the split that a path names: a folder as BEIR's (its split train), or its file qrels/SPLIT.tsv. None:
    the path is something else."""
    if is_collection(path):
        return path, "train"
    return (path.parent.parent, path.name.partition(".")[0]) if path.parent.name == "qrels" else None


def is_collection(path: Path) -> bool:
    """Return whether a path is a folder as BEIR's."""
    return path.is_dir() and any(path.glob("corpus.*")) and (path / "qrels").is_dir()


def read_texts(path: Path) -> dict[str, str]:
    """Read documents or queries: their texts by their ids. Raises UsageError or UserError."""
    texts: dict[str, str] = {}
    for row in map(raise_error, read_rows(path, _names_of_texts)):
        name = _as_id(_value(row.values, _ID, row.place, "id"), row.place)
        text = "\n".join(part for part in (_text(row.values, ("title",)), _text(row.values, _TEXT)) if part)
        if not any(isinstance(row.values.get(name), str) for name in (*_TEXT, "title")):
            raise UserError(f"{row.place}: no text: it has {join_names(row.values)}")
        if texts.setdefault(name, text) != text:
            raise UserError(f"{row.place}: the id {name!r} again, with another text")
    return texts


def read_grades(path: Path) -> Grades:
    """Read grades, in the formats of `read_collection`. Raises UsageError or UserError."""
    grades: Grades = {}
    for place, query, document, value in _grade_rows(path):
        grade = parse_finite(str(value).strip())
        if grade is None or grade != int(grade):
            raise UserError(f"{place}: the grade {value!r} is not a whole number")
        known = grades.setdefault(_as_id(query, place), {})
        if known.setdefault(name := _as_id(document, place), int(grade)) != int(grade):
            raise UserError(
                f"{place}: query {query} and document {name} have the grades {known[name]} and {int(grade)}"
            )
    if not grades:
        raise UserError(f"{path}: no grades")
    return grades


def _grade_rows(path: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    """Yield the place, the query, the document and the grade of each row."""
    if file_format(path) in {*FORMATS, "json"} - {"txt"}:
        for row in map(raise_error, read_rows(path, _names_of_grades)):
            parts = ((_QUERY, "query"), (_DOCUMENT, "document"), (_GRADE, "grade"))
            yield row.place, *(_value(row.values, names, row.place, what) for names, what in parts)  # pyright: ignore
        return
    for number, line in read_lines(path):
        cells, place = raise_error(line).split(), f"{path}:{number}"
        if len(cells) not in (0, 3, 4):
            raise UserError(f"{place}: {len(cells)} columns: expected query, document, grade, or TREC's four columns")
        if cells and not (number == 1 and {*cells} & {*_QUERY, *_DOCUMENT}):
            yield place, cells[0], *cells[-2:]  # pyright: ignore


def _found(root: Path | None, name: str, given: str | Path | None) -> Path:
    """Return the file of a collection: the given one, or the one with a name, and any ending, in its folder."""
    if given is not None:
        return Path(given)
    if root is None:
        raise UsageError(
            f"no {name.partition('/')[0]}: give a folder as BEIR's, or the files of corpus, queries and qrels"
        )
    if not (files := sorted(root.glob(f"{name}.*"))):
        others = sorted(path.name.partition(".")[0] for path in (root / "qrels").glob("*"))
        have = f"; its splits are: {join_names(others)}" * bool(others and "/" in name)
        raise UsageError(f"{root}: no {name}.jsonl or .tsv in it{have}")
    return files[0]


def _names_of_texts(cells: list[str]) -> list[str] | None:
    """Return the names of the columns of a table without a header."""
    known = {cell.strip().lower() for cell in cells} & {*_ID, *_TEXT}
    return None if known or len(cells) not in (2, 3) else ["id", *["title"] * (len(cells) == 3), "text"]


def _names_of_grades(cells: list[str]) -> list[str] | None:
    """Return the names of the columns of a table without a header: its last cell is a number."""
    if len(cells) not in (3, 4) or parse_finite(cells[-1].strip()) is None:
        return None
    return [_QUERY[0], *["iteration"] * (len(cells) == 4), _DOCUMENT[0], _GRADE[0]]


def _value(values: dict[str, Any], names: tuple[str, ...], place: str, what: str) -> Any:
    for name in names:
        if values.get(name) is not None:
            return values[name]
    raise UserError(f"{place}: no {what} ({', '.join(names)}): it has {join_names(values)}")


def _as_id(value: Any, place: str) -> str:
    """Return an id as text: 7 and "7" are the same."""
    if type(value) is int or (isinstance(value, str) and value.strip()):
        return str(value).strip()
    raise UserError(f"{place}: the id {value!r} is neither a text nor a whole number")


def _text(values: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((values[name].strip() for name in names if isinstance(values.get(name), str)), "")
