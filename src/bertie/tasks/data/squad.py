"""Questions about a context: SQuAD's JSON of versions 1.1 and 2.0, and rows of .jsonl, .csv and .tsv."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie import storage
from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    STDIN,
    Row,
    join_names,
    parse_index,
    require_distinct_columns,
    require_file,
    require_list,
    row_from_python,
    rows,
    shorten,
    string,
)

_TABLES = (".csv", ".tsv")


@dataclass(frozen=True)
class Answer:
    """text: as it stands in the context from character `start` on; start -1: nobody said where."""

    text: str
    start: int


@dataclass(frozen=True)
class Question:
    """answers: empty where the context does not tell (SQuAD 2.0), None where nobody said. id: of the data set, or its number."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None
    source: str


@dataclass(frozen=True)
class QuestionColumns:
    """Of .jsonl, .csv and .tsv; SQuAD's .json has its own names."""

    question: str = ""
    """Column of the question (empty: question)."""
    context: str = ""
    """Column of what it is asked of (empty: context)."""
    answers: str = ""
    """Column of the answer, empty for none; in .jsonl also a list of them, or SQuAD's (empty: answers or answer)."""

    def __post_init__(self) -> None:
        require_distinct_columns(
            question=self.question or "question", context=self.context or "context", answers=self.answers
        )


@dataclass(frozen=True)
class SquadReader:
    """A table may also say where the answer begins, in answer_start, and give questions an id."""

    columns: QuestionColumns = QuestionColumns()

    def read(self, path: Path) -> Iterator[Question | UserError]:
        """With answers. Errors, raised: UsageError for a missing file, UserError for one that is no such JSON."""
        seen: set[str] = set()
        for found in self._found(path, answered=True):
            if isinstance(found, UserError):
                yield found
            elif found.answers is None:
                yield UserError(f"{found.source}: no answers")
            elif found.id in seen:
                yield UserError(f"{found.source}: the id {shorten(found.id)!r} is there already")
            else:
                seen.add(found.id)
                yield found

    def stream(self, path: Path) -> Iterator[Question | UserError]:
        """For prediction: questions may share an id, since none is remembered, and what is no answer is none."""
        return self._found(path, answered=False)

    def _found(self, path: Path, answered: bool) -> Iterator[Question | UserError]:
        if path == STDIN:
            raise UsageError("of stdin a line is a text, and a question needs a context: give a .json or .jsonl file")
        require_file(path)
        nested = path.suffix == ".json"
        columns = QuestionColumns() if nested else self.columns
        for number, found in enumerate(_nested(path) if nested else _rows(path), 1):
            try:
                yield _question(found, str(number), columns, answered) if isinstance(found, Row) else found
            except UserError as error:
                if isinstance(error, UsageError) and path.suffix in _TABLES:
                    raise
                yield UserError(str(error))

    def values(self, given: Iterable[Any]) -> Iterator[Question]:
        """From dicts ({"question": …, "context": …, "answers": …}), pairs (question, context) or Questions. Errors: UserError."""
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            columns = self.columns if isinstance(value, dict) else QuestionColumns()
            if isinstance(value, tuple | list) and len(value) == 2:
                value = {"question": value[0], "context": value[1]}
            if isinstance(value, dict):
                value = _question(row_from_python(value, place), str(number), columns)
            elif not isinstance(value, Question):
                wanted = 'expected {"question": …, "context": …} (in a file: --input), a pair of both or a Question'
                raise UserError(f"{place}: {wanted}, got {type(value).__name__}")
            yield value


def placed(answer: Answer, context: str) -> Answer | None:
    """The answer where it lies. With a start that is wrong it is the nearest place that holds the text, without one the first."""
    text = answer.text.strip()
    start = answer.start + len(answer.text) - len(answer.text.lstrip())
    if not text:
        return None
    if answer.start < 0 or context[start : start + len(text)] != text:
        before, after = context.rfind(text, 0, max(start, 0) + len(text)), context.find(text, max(start, 0))
        start = min((at for at in (before, after) if at >= 0), key=lambda at: abs(at - start), default=-1)
    return Answer(text, start) if start >= 0 else None


def _rows(path: Path) -> Iterator[Row | UserError]:
    if path.suffix not in (".jsonl", *_TABLES):
        raise UsageError(f"{path}: questions are read from SQuAD's .json, or from .jsonl, .csv and .tsv files")
    return rows(path)


def _nested(path: Path) -> Iterator[Row | UserError]:
    """SQuAD's articles → paragraphs → questions, one row a question with its context."""
    values = storage.read_json(path)
    articles = values.get("data") if isinstance(values, dict) else None
    if not isinstance(articles, list):
        raise UserError(f'{path} is not in the form of SQuAD: there is no list "data" in it')
    for a, article in enumerate(articles):
        paragraphs = _list(article, "paragraphs")
        if paragraphs is None:
            yield UserError(f'{path}: data[{a}] has no list "paragraphs"')
        for p, paragraph in enumerate(paragraphs or []):
            questions = _list(paragraph, "qas")
            if questions is None:
                yield UserError(f'{path}: data[{a}].paragraphs[{p}] has no list "qas"')
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            for q, question in enumerate(questions or []):
                place = f"data[{a}].paragraphs[{p}].qas[{q}]"
                if isinstance(question, dict) and isinstance(context, str):
                    name = place if question.get("id") is None else question["id"]
                    yield Row({**question, "context": context}, f"{path.name}: {name}", f"{path}: {name}")
                else:
                    yield UserError(f"{path}: {place} is no question with a context")


def _list(values: Any, name: str) -> list[Any] | None:
    found = values.get(name) if isinstance(values, dict) else None
    return found if isinstance(found, list) else None


def _question(row: Row, number: str, columns: QuestionColumns, answered: bool = True) -> Question:
    """answered: whether answers that are none are an error; else they are None."""
    values, source, place = row
    names = columns.question or "question", columns.context or "context"
    if missing := [name for name in names if name not in values]:
        raise UsageError(
            f"{place}: no {missing[0]!r}; there are {join_names(values)}. Choose with --task.question and --task.context"
        )
    asked, context = (string(values[name], name, place) for name in names)
    if not context.strip():
        raise UserError(f"{place}: the context is empty")
    name = string(str(number if values.get("id") is None else values["id"]), "id", place)
    try:
        answers = _given_answers(values, columns, place)
    except UserError:
        if answered:
            raise
        answers = None
    return Question(name, asked, context, answers, source)


def _given_answers(values: dict[str, Any], columns: QuestionColumns, place: str) -> tuple[Answer, ...] | None:
    given = values.get(columns.answers or ("answers" if "answers" in values else "answer"))
    if str(values.get("is_impossible")).strip().lower() in ("true", "1"):
        return ()
    if isinstance(given, str):
        start = values.get("answer_start")
        given = {"text": [given], "answer_start": [_whole(start)]} if given.strip() else []
    return _answers(given, place)


def _whole(start: Any) -> Any:
    """A cell's number; pandas writes 8.0 where other rows have none."""
    if not isinstance(start, str):
        return start
    number = parse_index(start.strip().removesuffix(".0")) if start.strip() else -1
    return start if number is None else number


def _answers(value: Any, place: str) -> tuple[Answer, ...] | None:
    """SQuAD's list of {"text", "answer_start"}, the same as a dict of two lists (as `datasets` has it), or a list of texts."""
    if value is None:
        return None
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        texts, starts = value["text"], value.get("answer_start")
        starts = [-1] * len(texts) if starts is None else starts
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise UserError(
                f"{place}: answer_start must be a list of {len(texts)}, as long as the texts, found {starts!r:.40}"
            )
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    if not isinstance(value, list):
        raise UserError(f"{place}: the answers must be a list, found {str(value)[:40]!r}")
    found = []
    for each in value:
        each = {"text": each} if isinstance(each, str) else each
        if not isinstance(each, dict) or "text" not in each:
            raise UserError(f"{place}: an answer without a text: {str(each)[:40]!r}")
        start = -1 if each.get("answer_start") is None else each["answer_start"]
        if type(start) is not int:
            raise UserError(f"{place}: answer_start is {str(start)[:20]!r}, and must be a number of characters")
        found.append(Answer(string(each["text"], "answers", place), start))
    return tuple(found)
