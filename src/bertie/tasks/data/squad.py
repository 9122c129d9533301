"""Questions about a context: SQuAD's JSON, versions 1.1 and 2.0, and rows of .jsonl, .csv, .tsv and .parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie import storage
from bertie.errors import UsageError, UserError, join_names, raise_error, shorten
from bertie.tasks.data.cells import is_written, parse_cell
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.rows import (
    STDIN,
    Row,
    file_format,
    is_stdin,
    label_or_none,
    parse_label,
    parse_position,
    read_rows,
    require_distinct_columns,
    require_file,
    require_string,
    row_from_python,
)

_TABLES = ("csv", "tsv", "parquet")
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


@dataclass(frozen=True)
class SquadReader:
    """Reads questions. Rows may also have the start of the answer, in answer_start, and an id.

    The columns are those of .jsonl, .csv, .tsv and .parquet files. SQuAD's .json has its own names.

    Attributes:
        question: Column of the question.
        context: Column of the context.
        answers: Column of the answer, empty for none; also a list of answers, or SQuAD's object, in tables as JSON or as
            Python and NumPy print it. Empty: answers or answer.
    """

    question: str = "question"
    context: str = "context"
    answers: str = ""

    def __post_init__(self) -> None:
        require_distinct_columns(question=self.question, context=self.context, answers=self.answers)

    def read(self, path: Path) -> Iterator[Question | UserError]:
        """Read questions with answers, for training and evaluation.

        Raises:
            UsageError: if the file does not exist, or a table lacks a column.
            UserError: if a .json file is not SQuAD's.
        """
        return self._answered(self._read(path, answered=True), str(path).removesuffix(path.name))

    def _answered(self, questions: Iterator[Question | UserError], folder: str = "") -> Iterator[Question | UserError]:
        """Check that questions have answers and ids of their own, wherever they are from."""
        seen: set[str] = set()
        for question in questions:
            if isinstance(question, UserError):
                yield question
            elif question.answers is None:
                remedy = "Name their column with --task.answers; an empty text or list says that there is none"
                yield UserError(f"{folder}{question.source}: no answers", remedy)
            elif question.id in seen:
                yield UserError(f"{folder}{question.source}: the id {shorten(question.id)!r} is there already")
            else:
                seen.add(question.id)
                yield question

    def stream(self, path: Path) -> Iterator[Question | UserError]:
        """Read questions for prediction. Ids may repeat, since none is held in memory; bad answers are None."""
        return self._read(path, answered=False)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: those of its first row that can be read."""
        rows = _read_squad_json(path) if path.suffix == ".json" else _read_table(path)
        row = next((row for row in rows if isinstance(row, Row)), None)
        answers = "" if row is None else self._answer_column(row)
        names = {"question": self.question, "context": self.context, "answers": answers}
        return {use: name for use, name in names.items() if name}

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Question]:
        """Convert dicts ({"question": …, "context": …, "answers": …}), pairs (question, context) or `Question`s.

        labeled: as `read`, or else as `stream`.

        Raises:
            UserError: for the first bad one.
        """
        found = self._values(given, labeled)
        yield from map(raise_error, self._answered(found)) if labeled else found

    def _values(self, given: Iterable[Any], answered: bool) -> Iterator[Question]:
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            reader = self if isinstance(value, dict) else SquadReader()
            if isinstance(value, tuple | list) and len(value) == 2:
                value = {"question": value[0], "context": value[1]}
            if isinstance(value, dict):
                value = reader._to_question(row_from_python(value, place), str(number), answered)
            elif not isinstance(value, Question):
                expected = 'a question needs a context: give the pair of both, or {"question": …, "context": …}'
                remedy = "On the command line: --one-example QUESTION CONTEXT, or --input FILE"
                raise UserError(f"{place}: {expected}", remedy)
            yield value

    def _read(self, path: Path, answered: bool) -> Iterator[Question | UserError]:
        if path == STDIN:
            problem = "a line of stdin is a text, and a question needs a context"
            raise UsageError(f"{problem}: pipe rows, with --input -.jsonl")
        if not is_stdin(path):
            require_file(path)
        is_json = path.suffix == ".json"
        reader = SquadReader() if is_json else self
        for number, row in enumerate(_read_squad_json(path) if is_json else _read_table(path), 1):
            try:
                yield reader._to_question(row, str(number), answered) if isinstance(row, Row) else row
            except UserError as error:
                if isinstance(error, UsageError) and file_format(path) in _TABLES:
                    raise
                yield UserError(str(error))

    def _to_question(self, row: Row, number: str, answered: bool = True) -> Question:
        """answered: whether bad answers are an error, instead of None."""
        values, source, place = row
        names = self.question, self.context
        if missing := [name for name in names if name not in values]:
            raise UsageError(
                f"{place}: no {missing[0]!r}; there are {join_names(values)}",
                "Choose with --task.question and --task.context",
            )
        question = require_string(values[self.question], self.question, place)
        context = require_string(values[self.context], self.context, place)
        if not context.strip():
            raise UserError(f"{place}: the context is empty")
        identifier = require_string(str(number if values.get("id") is None else values["id"]), "id", place)
        answers = self._answers_of(row) if answered else label_or_none(lambda: self._answers_of(row), strict=False)
        return Question(identifier, question, context, answers, source)

    def _answers_of(self, row: Row) -> tuple[Answer, ...] | None:
        values, place = row.values, row.place
        name = self._answer_column(row)
        given, start, context = values.get(name), values.get("answer_start"), values[self.context]
        impossible = _is_impossible(values.get("is_impossible"), place)
        if is_written(start):
            start = parse_cell(start, "answer_start", place)
        if is_written(given) and given.strip() not in context:
            given = parse_cell(given, name, place)
        elif isinstance(given, str):
            given = [{"text": given, "answer_start": start}]
        elif isinstance(given, list) and isinstance(start, list):
            given = {"text": given, "answer_start": start}
        answers = _parse_answers(given, place)
        if impossible:
            answers = tuple(each for each in answers or () if not _may_be_none(each, context))
        if answers and (unclear := [each for each in answers if _may_be_none(each, context)]):
            remedy = "leave the cell empty if there is none, or give its answer_start"
            raise UserError(f"{place}: the answer {unclear[0].text.strip()!r} could mean that there is none: {remedy}")
        if answers is not None and impossible is (answers != ()):
            found = f"the answer is {shorten(answers[0].text)!r}" if answers else "there is no answer"
            raise UserError(f"{place}: is_impossible is {str(impossible).lower()}, and {found}")
        if answers is None:
            return None
        return tuple((placed(each, context) if each.start >= 0 else None) or each for each in answers)

    def _answer_column(self, row: Row) -> str:
        """Return the column of the answers, which may be missing. Raises UsageError if it could be two."""
        found = [self.answers] if self.answers else [name for name in _ANSWERS if name in row.values]
        if len(found) > 1:
            problem = f"{' and '.join(map(repr, found))} could both be the answers"
            listed = f"its columns are: {join_names(row.values)}"
            raise UsageError(f"{row.place}: {problem}; {listed}", "Choose with --task.answers")
        return found[0] if found else ""


def _is_impossible(flag: Any, place: str) -> bool | None:
    """Return SQuAD 2.0's flag that the context has no answer; None if there is none."""
    if (given := parse_label(flag, "is_impossible", place)) is None:
        return None
    value = given.lower()
    if value not in (*_TRUE, *_FALSE):
        raise UserError(f"{place}: is_impossible is {shorten(value)!r}, and must be true or false")
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


def _read_table(path: Path) -> Iterator[Row | UserError]:
    if file_format(path) not in ("jsonl", *_TABLES):
        known = "SQuAD's .json, or from .jsonl, .csv, .tsv and .parquet files"
        raise UsageError(f"{path}: questions are read from {known}")
    return read_rows(path)


def _read_squad_json(path: Path) -> Iterator[Row | UserError]:
    """Yield one row per question, with its context, from SQuAD's articles → paragraphs → questions."""
    values = storage.read_json(path, None, 'the object of SQuAD, {"data": [{"paragraphs": …}]}')
    articles = values.get("data")
    if not isinstance(articles, list):
        raise UserError(f'{path} does not have the form of SQuAD: there is no list "data" in it')
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
        raise UserError(f"{place}: answer_start is {str(start)[:20]!r}, and must be a number of characters")
    return number


def _parse_answers(value: Any, place: str) -> tuple[Answer, ...] | None:
    """Parse SQuAD's list of {"text", "answer_start"}, a dict of two lists (as in `datasets`), or a list of texts.

    An empty text is no answer. Beside other answers it is left out, as by SQuAD's scripts.
    """
    if value is None or value != value:  # NaN
        return None
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts, starts = value["text"], value.get("answer_start")
        starts = [-1] * len(texts) if starts is None else starts
        if not isinstance(starts, list) or len(starts) != len(texts):
            expected = f"a list of {len(texts)}, as long as the texts"
            raise UserError(f"{place}: answer_start must be {expected}, found {starts!r:.40}")
        pairs = list(zip(texts, starts, strict=True))
    else:
        value = [value] if isinstance(value, dict) else value
        if not isinstance(value, list):
            raise UserError(f"{place}: the answers must be a list, found {str(value)[:40]!r}")
        pairs = [_text_and_start(item, place) for item in value]
    answers = []
    for text, start in pairs:
        if require_string(text, "answers", place).strip():
            answers.append(Answer(text, _parse_start(start, place)))
    return tuple(answers)


def _text_and_start(item: Any, place: str) -> tuple[Any, Any]:
    if isinstance(item, dict) and "text" in item:
        return item["text"], item.get("answer_start")
    if not isinstance(item, str):
        raise UserError(f"{place}: an answer without a text: {str(item)[:40]!r}")
    return item, None
