"""Questions about a context: SQuAD's JSON, versions 1.1 and 2.0, and rows of .jsonl, .csv, .tsv and .parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import storage
from bertie.base.errors import UsageError, UserError, shorten
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.reader import DataFormat, KindFacts, resolved_alike
from bertie.examples.rows import (
    STDIN,
    Header,
    Row,
    convert_rows,
    distinct_columns,
    file_format,
    is_stdin,
    label_or_none,
    parse_label,
    parse_position,
    read_json_rows,
    read_rows,
    require_file,
    require_string,
)

_ANSWERS = ("answers", "answer")  # names of the column that need no flag
_NO_ANSWER = ("nan", "none", "null", "-", "?", "n/a", "na", "<na>")  # what programs write for a missing value
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0")


@dataclass(frozen=True)
class Answer:
    """text: a substring of the context, from character `start`. start: -1 if it is unknown."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        id: Its id in the data set; without one, its number in the file.
        question: The question.
        context: The text that may contain the answer.
        answers: The gold answers. Empty if the context does not answer the question (SQuAD 2.0); None if unknown.
        source: The file and place, for messages.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.question, self.context)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return None if self.answers is None else ("an answer" if self.answers else "no answer",)


class QuestionColumns(NamedTuple):
    """The columns of a row."""

    question: str
    context: str
    answers: str
    """Empty: the row has none."""

    @property
    def uses(self) -> dict[str, str]:
        return self._asdict()


@dataclass(frozen=True)
class Questions:
    """Questions about a context. Rows may also have the start of the answer, in answer_start, and an id.

    The columns are for .jsonl, .csv, .tsv and .parquet files. SQuAD's .json has its own names.

    Attributes:
        question: Column of the question.
        context: Column of the context.
        answers: Column of the answer, empty for none; also a list of answers, or SQuAD's object, in tables as JSON or as
            Python prints it. Empty: answers or answer.
    """

    question: str = "question"
    context: str = "context"
    answers: str = ""
    facts, data_format, label_rules = KindFacts((Question,), answer="answers"), DataFormat(), None
    resolved = resolved_alike

    __post_init__ = distinct_columns("question", "context", "answers")

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:  # noqa: ARG002
        if path == STDIN:
            problem = "a line of stdin is a text, but a question needs a context"
            raise UsageError(f"{problem}: pipe rows, with --input -.jsonl")
        if not is_stdin(path):
            require_file(path)
        if path.suffix == ".json":
            names = {"question": self.question, "context": self.context, "answers": self.answers or "answers"}
            usual_names = all(name == usual for usual, name in names.items())
            return _read_squad(path) if usual_names else convert_rows(_read_squad(path), lambda row: row.renamed(names))
        if file_format(path) not in ("jsonl", "csv", "tsv", "parquet"):
            known = "SQuAD's .json, or from .jsonl, .csv, .tsv and .parquet files"
            raise UsageError(f"{path}: questions are read from {known}")
        return read_rows(path)

    def from_python(self, value: Any, place: str, source: str) -> Row:
        """Return the row of a pair of a question and its context."""
        if isinstance(value, tuple | list) and len(value) == 2:
            return Row({self.question: value[0], self.context: value[1]}, source, place)
        expected = 'a question needs a context: give the pair of both, or {"question": …, "context": …}'
        raise UserError(f"{place}: {expected}", "On the command line: --one-example QUESTION CONTEXT, or --input FILE")

    def columns(self, row: Row, labeled: bool) -> QuestionColumns:
        names = Header(row.values)
        names.require("question", self.question)
        names.require("context", self.context)
        answers = [self.answers] if self.answers else [name for name in _ANSWERS if name in row.values]
        if len(answers) > 1:
            raise names.unclear(f"{' and '.join(answers)} could both be the answers", "answers")
        if labeled and not answers and "is_impossible" not in names:
            raise names.unclear("no answers", "answers")
        return QuestionColumns(self.question, self.context, answers[0] if answers else "")

    def to_example(self, row: Row, columns: QuestionColumns, labeled: bool, seen: dict[Any, Any]) -> Question:
        values, source, place = row
        question = require_string(values[columns.question], columns.question, place)
        context = require_string(values[columns.context], columns.context, place)
        if not context.strip():
            raise UserError(f"{place}: the context is empty")
        number = seen["number"] if values.get("id") is None else values["id"]
        identifier = require_string(str(number), "id", place)
        answers = label_or_none(lambda: _answers_of(row, columns.answers, context), labeled)
        if labeled and answers is None:
            raise UserError(f"{place}: no answers; an empty text or list says that there is none")
        if labeled and seen.setdefault(("id", identifier), seen["number"]) != seen["number"]:
            raise UserError(f"{place}: duplicate id {shorten(identifier)!r}")
        return Question(identifier, question, context, answers, source)


def _answers_of(row: Row, name: str, context: str) -> tuple[Answer, ...] | None:
    """Return the answers of a row, which are in the column `name`; None if they are unknown."""
    values, place = row.values, row.place
    cell, start = values.get(name), values.get("answer_start")
    impossible = _is_impossible(values.get("is_impossible"), place)
    if is_written(start):
        start = parse_cell(start, "answer_start", place)
    if is_written(cell) and cell.strip() not in context:
        cell = parse_cell(cell, name, place)
    elif isinstance(cell, str):
        cell = [{"text": cell, "answer_start": start}]
    elif isinstance(cell, list) and isinstance(start, list):
        cell = {"text": cell, "answer_start": start}
    answers = _parse_answers(cell, place)
    if impossible:
        answers = tuple(answer for answer in answers or () if not _may_be_none(answer, context))
    if unclear := [answer for answer in answers or () if _may_be_none(answer, context)]:
        remedy = "if so, leave the cell empty, else give its answer_start"
        raise UserError(f'{place}: the answer {unclear[0].text.strip()!r} may mean "no answer": {remedy}')
    if answers is not None and impossible is (answers != ()):
        said = f"the answer is {shorten(answers[0].text)!r}" if answers else "there is no answer"
        raise UserError(f"{place}: is_impossible is {str(impossible).lower()}, but {said}")
    return answers and tuple((placed(answer, context) if answer.start >= 0 else None) or answer for answer in answers)


def _is_impossible(flag: Any, place: str) -> bool | None:
    """Return SQuAD 2.0's flag that the context has no answer; None if there is none."""
    if (label := parse_label(flag, "is_impossible", place)) is None:
        return None
    value = label.lower()
    if value not in (*_TRUE, *_FALSE):
        raise UserError(f"{place}: is_impossible is {shorten(value)!r}, but must be true or false")
    return value in _TRUE


def _may_be_none(answer: Answer, context: str) -> bool:
    """Whether a program may have written an answer for a missing value: it does not stand where its start says."""
    text, start = answer.text, answer.start
    stands = start >= 0 and context[start : start + len(text)] == text
    return not stands and text.strip().lower() in _NO_ANSWER


def placed(answer: Answer, context: str) -> Answer | None:
    """Locate an answer in its context.

    Returns:
        The answer without surrounding white space and with its start. If the given start is wrong, the nearest
        occurrence of the text; if it is unknown, the first. None if the context does not contain the text.
    """
    text = answer.text.strip()
    start = -1 if answer.start < 0 else answer.start + len(answer.text) - len(answer.text.lstrip())
    if not text:
        return None
    if start < 0 or context[start : start + len(text)] != text:
        before, after = context.rfind(text, 0, max(start, 0) + len(text)), context.find(text, max(start, 0))
        start = min((at for at in (before, after) if at >= 0), key=lambda at: abs(at - start), default=-1)
    return Answer(text, start) if start >= 0 else None


def _read_squad(path: Path) -> Iterator[Row | UserError]:
    """Yield one row per question, with its context, from SQuAD's articles → paragraphs → questions, or from a list of rows."""
    values = storage.parse(path, storage.read_bytes(path, None))
    if isinstance(values, list):
        yield from read_json_rows(path, "a list of objects")
        return
    values = storage.of_kind(path, values, dict, 'the object of SQuAD, {"data": [{"paragraphs": …}]}')
    articles = values.get("data")
    if not isinstance(articles, list):
        raise UserError(f'{path} does not have the form of SQuAD: it has no list "data"')
    for a, article in enumerate(articles):
        paragraphs = _list_of(article, "paragraphs")
        if paragraphs is None:
            yield UserError(f'{path}: data[{a}] has no list "paragraphs"')
        for p, paragraph in enumerate(paragraphs or []):
            questions = _list_of(paragraph, "qas")
            if questions is None:
                yield UserError(f'{path}: data[{a}].paragraphs[{p}] has no list "qas"')
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            for q, question in enumerate(questions or []):
                place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                if isinstance(question, dict) and isinstance(context, str):
                    name = place if question.get("id") is None else question["id"]
                    yield Row({**question, "context": context}, f"{path.name}: {name}", f"{path}: {name}")
                else:
                    yield UserError(f"{path}: {place} is not a question with a context")


def _list_of(values: Any, name: str) -> list[Any] | None:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, list) else None


def _parse_start(start: Any, place: str) -> int:
    """Return where an answer starts; -1 if it is unknown. pandas makes 8.0 of 8 if other rows have none."""
    value = "" if isinstance(start, bool) else parse_label(start, "answer_start", place)
    number = -1 if value in (None, "-1", "-1.0") else parse_position(value)
    if number is None:
        raise UserError(f"{place}: answer_start is {str(start)[:20]!r}, but must be a number of characters")
    return number


def _parse_answers(value: Any, place: str) -> tuple[Answer, ...] | None:
    """Parse SQuAD's list of {"text", "answer_start"}, a dict of two lists (as in `datasets`), or a list of texts.

    An empty text is no answer. Beside other answers it is left out, as by SQuAD's scripts.
    """
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, dict) and isinstance(texts := value.get("text"), list):
        starts = value.get("answer_start") or [None] * len(texts)
        if not isinstance(starts, list) or len(starts) != len(texts):
            expected = f"a list of {len(texts)}, as long as the texts"
            raise UserError(f"{place}: answer_start must be {expected}, found {starts!r:.40}")
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    answers = []
    for item in [value] if isinstance(value, dict) else value if isinstance(value, list) else [None]:
        text, start = (item.get("text"), item.get("answer_start")) if isinstance(item, dict) else (item, None)
        if not isinstance(text, str):
            raise UserError(f"{place}: the answers must be a list of texts, found {shorten(str(value))!r}")
        if require_string(text, "answers", place).strip():
            answers.append(Answer(text, _parse_start(start, place)))
    return tuple(answers)
