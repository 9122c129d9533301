"""Examples with a context and several endings, one of them correct: SWAG's .csv, CODAH's .tsv, similar tables, .jsonl.

Endings are columns with numbers or letters (ending0 …, choice1 …, answerA …), or one list. A label is the number of an ending,
its letter, its text, or the name of its column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base import console
from bertie.base.errors import UsageError, UserError, join_names, shorten
from bertie.examples.cells import is_written, parse_cell
from bertie.examples.labels import MARKERS, gold_label
from bertie.examples.reader import DataFormat, KindFacts
from bertie.examples.rows import (
    Header,
    Row,
    distinct_columns,
    label_or_none,
    named_columns,
    parse_index,
    parse_label,
    read_rows,
    require_string,
)

_CONTEXTS = (
    *("context", "premise", "article", "passage", "text", "prompt", "ctx", "goal", "question", "question_stem"),
    *("startphrase", "query", "asks-for", "asks_for"),
)
_QUESTIONS = ("question", "query", "asks-for", "asks_for")
_BEFORE_QUESTION = ("context", "premise", "article", "passage", "text")
"""Contexts beside which a column of `_QUESTIONS` is a second text: SocialIQA, COPA, RACE, LogiQA."""
_LABELS = ("label", "answer", "gold", "answerkey", "correct_option")
_LISTS = ("endings", "choices", "options")
_NUMBERED = re.compile(r"(ending|choice|answer|option|alternative|sol)_?(\d+|[a-h])", re.IGNORECASE)
_CODAH = ("category", "context", "ending0", "ending1", "ending2", "ending3", "label")
_FIRST = {
    ("context", "question", "answera", "answerb", "answerc"): 1,  # SocialIQA
    ("premise", "question", "choice1", "choice2"): 0,  # COPA
    ("goal", "", "sol1", "sol2"): 0,  # PIQA
}
"""The number of the first ending in the labels of known files, by the columns of their context, question and endings."""
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""The questions of COPA (Roemmele et al. 2011) by the words that SuperGLUE's files have for them."""


@dataclass(frozen=True)
class ChoiceExample:
    """One context with its endings.

    Attributes:
        context: The text before the endings.
        lead: The text between the context and each ending: a question, or SWAG's sent2; "" if there is none.
        endings: The endings.
        label: The index of the correct ending; None if it is unknown.
        source: The file and line, for messages.
    """

    context: str
    lead: str
    endings: tuple[str, ...]
    label: int | None
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        """Those of its longest sequence."""
        return (self.context, f"{self.lead} {max(self.endings, key=len)}")

    gold = gold_label


class ChoiceColumns(NamedTuple):
    """The columns of a row."""

    context: str
    lead: str | None
    """That of the text before each ending."""
    endings: tuple[str, ...]
    label: str | None
    first: int | None
    """The number of the first ending in the labels, if it is certain."""
    counted: bool
    """Whether labels are certainly numbers, as in SWAG, CODAH and other known files."""

    @property
    def doubtful(self) -> bool:
        """Whether labels could also be the numbers in the names of the columns of endings, from 1."""
        return self.first is None and [name[-1:] for name in self.endings[:2]] == ["1", "2"]

    @property
    def uses(self) -> dict[str, str | None]:
        numbers = f"{self.label} (from {self.first or 0})" if self.label else None
        uses = {"context": self.context, "before the endings": self.lead, "label": numbers}
        return uses | {"endings": ", ".join(self.endings)}


def _flat(row: Row) -> Row:
    """Return a row of ARC and CommonsenseQA, whose question holds its text and the choices, with a column for each."""
    question = row.values.get("question")
    if not isinstance(question, dict) or not {"stem", "choices"} <= question.keys():
        return row
    return row._replace(values={**row.values, "question": question["stem"], "choices": question["choices"]})


@dataclass(frozen=True)
class Choices:
    """Examples of multiple choice."""

    context: str = ""
    """Column of the context (empty: found from the header)."""
    label: str = ""
    """Column of the correct ending (empty: found from the header)."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or one column with a list (empty: found from the header)."""
    question: str = ""
    """Column of a second text, between the context and each ending (empty: question, beside a context)."""
    labels_from: int | None = None
    """Number of the first ending in the labels, 0 or 1 (None: what the file says; 1 in SocialIQA's, 0 where it says nothing)."""
    data_format: DataFormat = DataFormat()
    facts, label_rules = KindFacts((ChoiceExample,), _flat, answer="label"), None

    __post_init__ = distinct_columns("context", "question", "label", "endings")

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:  # noqa: ARG002
        return read_rows(path, _codah_columns)

    def from_python(self, value: Any, place: str, source: str) -> ChoiceExample:
        """Return the example of a list of a context and its endings."""
        if not isinstance(value, list | tuple):
            expected = 'a context needs endings: give [context, ending, ending …] or {"context": …, "endings": […]}'
            remedy = "On the command line: --one-example CONTEXT ENDING ENDING…, or --input FILE"
            raise UserError(f"{place}: {expected}", remedy)
        texts = [require_string(text, f"text {number}", place) for number, text in enumerate(value, 1)]
        if len(texts) < 3:
            raise UserError(f"{place}: a list has a context and at least 2 endings, found {len(texts)} texts")
        return ChoiceExample(texts[0], "", tuple(texts[1:]), None, source)

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> Choices:
        """Find out from which number labels count: a 0 proves 0, and the number of the endings, without a 0, proves 1.

        Raises:
            UsageError: The columns of endings are numbered from 1, and nothing says whether labels are these numbers.
        """
        if self.labels_from is not None or not labeled or self.data_format.first_ending is not None:
            return self
        zero, last, doubtful, usual = "", "", "", 0  # the place of the first such label
        for row in (item for item in rows if isinstance(item, Row)):
            with suppress(UserError):
                columns = self.columns(row, labeled)
                endings, names = _endings_of(row.values, columns.endings, row.place)
                label = _read_label(row, columns, endings, names)
                if label and label.number is not None and (columns.counted or not label.same):
                    usual = columns.first or 0
                    zero = zero or row.place * (label.number == 0)
                    last = last or row.place * (label.number == len(endings))
                    doubtful = doubtful or row.place * columns.doubtful
                    if zero and not usual:
                        break
        certain = usual if zero and last else 0 if zero else 1 if last else None
        if certain is None and doubtful:
            problem = f"{doubtful}: the labels could count from 0, or name the columns of endings, from 1"
            raise UsageError(problem, "Set --task.labels-from to 0 or 1")
        if certain not in (None, usual):
            shown = f"labels count from {certain}, as {zero or last} shows"
            console.info_once(f"{path or 'the examples'}: {shown} (--task.labels-from)")
        return replace(self, data_format=DataFormat(first_ending=certain))

    def columns(self, row: Row, labeled: bool) -> ChoiceColumns:
        return _find_columns(self, Header(filter(None, row.values)), labeled)

    def to_example(self, row: Row, columns: ChoiceColumns, labeled: bool, seen: dict[Any, Any]) -> ChoiceExample:  # noqa: ARG002
        values, source, place = row
        context = require_string(values[columns.context], columns.context, place)
        lead = require_string(values[columns.lead], columns.lead, place) if columns.lead else ""
        endings, names = _endings_of(values, columns.endings, place)
        label = label_or_none(lambda: self._index(row, columns, endings, names), labeled)
        if labeled and label is None:
            raise UserError(f"{place}: no label")
        return ChoiceExample(context, _COPA.get(lead.strip().lower(), lead), endings, label, source)

    def _index(self, row: Row, columns: ChoiceColumns, endings: tuple[str, ...], names: Sequence[str]) -> int | None:
        """Return the index of the correct ending; None if the row has none.

        Raises UserError if the label means none of the endings, or two of them.
        """
        if (label := _read_label(row, columns, endings, names)) is None or label.named is not None:
            return label and label.named
        stated, certain = self.labels_from, self.data_format.first_ending
        first = stated if stated is not None else certain if certain is not None else columns.first or 0
        index = None if label.number is None else label.number - first
        lettered = any(len(name) == 1 for name in names)  # the data say which letters there are
        if index is None and not lettered and len(label.text) == 1 and label.text.isascii() and label.text.isalpha():
            index = ord(label.text.upper()) - ord("A")
        valid, name = index is not None and 0 <= index < len(endings), columns.label
        if len(label.same) == 1 and not valid:
            return label.same[0]
        if label.same and index not in label.same and stated is None and not columns.counted:
            problem = f"{name!r} is {label.text!r}, which could be the number of an ending or its text"
            raise UserError(f"{row.place}: {problem}", "If it is the number, set --task.labels-from to 0 or 1")
        if valid or label.text.lower() in MARKERS:
            return index if valid else None
        listed = join_names(names) if label.own else f"{first} to {len(endings) - 1 + first}"
        problem = f"{name!r} is {shorten(label.text)!r}, but the {len(endings)} endings are {listed}"
        raise UserError(f"{row.place}: {problem}")


class _Label(NamedTuple):
    text: str
    named: int | None
    """The index of the ending that it calls by its name."""
    number: int | None
    """The number that it is, if endings have no numbers of their own."""
    same: list[int]
    """The indices of the endings that are this text."""
    own: bool
    """Whether the data say which numbers the endings have."""


def _read_label(row: Row, columns: ChoiceColumns, endings: tuple[str, ...], names: Sequence[str]) -> _Label | None:
    name = columns.label
    text = parse_label(row.values.get(name), name, row.place) if name else None
    if text is None:
        return None
    whole = text if text in names else text.removesuffix(".0")  # pandas writes 1.0 for 1 if other rows have none
    named = names.index(whole) if whole in names else None
    numbered = bool(names) and all(map(str.isdecimal, names))
    number = None if numbered or named is not None else parse_index(whole)
    return _Label(text, named, number, [at for at, ending in enumerate(endings) if ending.strip() == text], numbered)


def _find_columns(kind: Choices, names: Header, labeled: bool) -> ChoiceColumns:
    """Find the columns of a row with these names. labeled: whether the column of the label must be clear."""

    context, lead, used = _find_texts(kind, names)
    endings = list(kind.endings) or _find_endings(names)
    names.require("endings", *endings)
    if repeated := [name for name in endings if name in used]:
        raise names.unclear(f"{repeated[0]!r} is the context, so it cannot be an ending", "context", "endings")
    labels = [kind.label] if kind.label else named_columns(names, _LABELS)
    free = [name for name in labels if name not in used and name not in endings]
    if labels and not free and (kind.label or labeled):
        use = "is the context" if labels[0] in used else "holds endings"
        raise names.unclear(f"{labels[0]!r} {use}, so it cannot be the label", "context", "endings", "label")
    if len(free) != 1 and labeled:
        problem = "more than one column could be the label" if free else "no label column"
        raise names.unclear(problem, "label")
    first = _FIRST.get(tuple(name.lower() for name in (context, lead or "", *endings)))
    counted = first is not None or names == _CODAH or [context, lead] == named_columns(names, ("sent1", "sent2"))
    return ChoiceColumns(context, lead, tuple(endings), free[0] if len(free) == 1 else None, first, counted)


def _find_texts(kind: Choices, names: Header) -> tuple[str, str | None, set[str]]:
    """Return the columns of the context and of the text before each ending, and the columns that these use."""
    names.require("context", kind.context)
    names.require("question", kind.question)
    contexts = [kind.context] if kind.context else named_columns(names, _CONTEXTS)
    if len(contexts) > 1:
        contexts = [name for name in contexts if name not in (kind.question, kind.label, *kind.endings)]
    lead = kind.question or None
    taken = (kind.context, kind.label, *kind.endings)
    questions = [name for name in named_columns(names, _QUESTIONS) if name not in taken]
    others = [name for name in contexts if name not in questions]
    if len(others) == len(questions) == 1 and not lead and (kind.context or others[0].lower() in _BEFORE_QUESTION):
        contexts, lead = others, questions[0]
    sentences = named_columns(names, ("sent1", "sent2"))
    if len(sentences) == 2 and not lead and [name.lower() for name in contexts] in ([], ["startphrase"]):
        return sentences[0], sentences[1], {*contexts, *sentences}  # SWAG splits the first phrase in two
    if len(contexts) != 1:
        problem = "more than one column could be" if contexts else "cannot tell which column is"
        raise names.unclear(f"{problem} the context", "context", "question")
    return contexts[0], lead, {contexts[0], lead or contexts[0]}


def _find_endings(names: Header) -> list[str]:
    """Return the columns of the endings: one with a list, or those with the same name and a number or a letter."""
    groups: dict[str, list[tuple[int, str]]] = {name: [(0, name)] for name in named_columns(names, _LISTS)}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            word, number = match[1].lower(), match[2].lower()
            at = int(number) if number.isdecimal() else ord(number) - ord("a")
            groups.setdefault(word + "0" * number.isdecimal(), []).append((at, name))
    if len(groups) != 1:
        none = "no endings to choose among, in columns ending0, ending1 … or a list"
        raise names.unclear(f"{join_names(groups)} could all be the endings" if groups else none, "endings")
    [columns] = map(sorted, groups.values())
    if [at for at, _ in columns] != list(range(columns[0][0], columns[0][0] + len(columns))):
        listed = join_names(name for _, name in columns)
        raise names.unclear(f"one of the endings {listed} is missing", "endings")
    return [name for _, name in columns]


def _endings_of(values: dict[str, Any], columns: Sequence[str], place: str) -> tuple[tuple[str, ...], Sequence[str]]:
    """Return the endings, and the names by which labels call them: their letters, or their columns."""
    first, names = columns[0], list[str]()
    given = values[first]
    if len(columns) > 1 or _NUMBERED.fullmatch(first):
        given, names = [values[name] for name in columns], list(columns)
        while given and (given[-1] in (None, "") or given[-1] != given[-1]):  # some questions have fewer endings
            given.pop()
    else:
        given = parse_cell(given, first, place) if is_written(given) else given
        if isinstance(given, list) and given and all(isinstance(ending, dict) for ending in given):
            given = {key: [ending.get(key) for ending in given] for key in ("text", "label")}
        if isinstance(given, dict):  # {"text": […], "label": […]}, or {"A": …, "B": …}
            texts, letters = (given["text"], given.get("label")) if "text" in given else ([*given.values()], [*given])
            if not isinstance(texts, list) or not isinstance(letters, list) or len(texts) != len(letters):
                raise UserError(f'{place}: {first!r} must have two lists of the same length, "text" and "label"')
            given, names = texts, [str(letter).strip().removesuffix(".0") for letter in letters]
    if not isinstance(given, list):
        raise UserError(f"{place}: the endings must be a list of strings, found {shorten(str(given))!r}")
    if len(given) < 2:
        raise UserError(f"{place}: {len(given)} endings to choose from, but at least 2 are needed")
    labels = columns if len(columns) > 1 else [first] * len(given)
    return tuple(require_string(ending, name, place) for ending, name in zip(given, labels, strict=False)), names


def _codah_columns(cells: list[str]) -> list[str] | None:
    """Recognize CODAH's files, which have no header: category (one letter), context, four endings, label."""
    is_codah = len(cells) == len(_CODAH) and len(cells[0]) == 1 and cells[-1] in ("0", "1", "2", "3")
    return list(_CODAH) if is_codah else None
