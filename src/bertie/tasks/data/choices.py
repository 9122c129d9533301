"""Examples with a context and several endings, one of them correct: SWAG's .csv, CODAH's .tsv, similar tables, .jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError, join_names, shorten
from bertie.tasks.data.endings import ending_columns, endings_of
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.left_out import ANSWER, leave_out, raise_mistake
from bertie.tasks.data.numbering import Numbering
from bertie.tasks.data.rows import (
    Row,
    convert_rows,
    label_or_none,
    may_differ,
    named_columns,
    parse_index,
    parse_label,
    read_rows,
    require_distinct_columns,
    require_string,
    row_from_python,
)

_CONTEXTS = (
    *("context", "premise", "article", "passage", "text", "prompt", "ctx", "goal", "question", "question_stem"),
    *("startphrase", "query", "asks-for", "asks_for"),
)
_QUESTIONS = ("question", "query", "asks-for", "asks_for")
_BEFORE_QUESTION = ("context", "premise", "article", "passage", "text")
"""Contexts beside which a column of `_QUESTIONS` is a second text: SocialIQA, COPA, RACE, LogiQA."""
_LABELS = ("label", "answer", "gold", "answerkey", "correct_option")
_CODAH = ["category", "context", "ending0", "ending1", "ending2", "ending3", "label"]
_FIRST = {
    ("context", "question", "answera", "answerb", "answerc"): 1,  # SocialIQA
    ("premise", "question", "choice1", "choice2"): 0,  # COPA
    ("goal", "", "sol1", "sol2"): 0,  # PIQA
}
"""The number of the first ending in the labels of known files, by the columns of their context, question and endings."""
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
"""The questions of COPA (Roemmele et al. 2011) by the words that SuperGLUE's files have for them."""
_NO_LABEL = ("-1", "-", "?", "none", "null", "n/a", "na", "<na>")


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

    @property
    def gold(self) -> tuple[str, ...] | None:
        return None if self.label is None else (str(self.label),)


@dataclass(frozen=True)
class ChoiceReader:
    """Reads examples. Endings are columns with numbers or letters (ending0 …, choice1 …, answerA …), or one list."""

    context: str = ""
    """Column of the context (empty: found from the header)."""
    label: str = ""
    """Column of the correct ending: its number, its letter, its text, or the name of its column (empty: found from the
    header)."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or one column with a list (empty: found from the header)."""
    question: str = ""
    """Column of a second text, between the context and each ending (empty: question, beside a context)."""
    labels_from: int | None = None
    """Number of the first ending in the labels, 0 or 1 (None: 1 in SocialIQA's files, 0 in others)."""
    counts_from_0: bool = False
    """Whether labels certainly count from 0 in the training examples, for files that leave a doubt."""
    found: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)
    """Whether labels certainly count from 0 in what was read last, under "counts_from_0"."""

    def __post_init__(self) -> None:
        for ending in self.endings or ("",):
            columns = {"context": self.context, "question": self.question, "label": self.label, "endings": ending}
            require_distinct_columns(**columns)
        if len(set(self.endings)) < len(self.endings):
            raise UsageError(f"task.endings names a column twice: {join_names(self.endings)}")
        if numbers := [name for name in self.endings if name.isdecimal()]:
            problem = f"task.endings: a label {numbers[0]} could be the column of this name or the ending of this index"
            raise UsageError(f"{problem}: rename the columns")
        if self.labels_from not in (None, 0, 1):
            raise UsageError(f"task.labels_from is {self.labels_from}: give 0 or 1")

    def read(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        """Read examples with labels, for training and evaluation.

        Raises:
            UsageError: if the file does not exist, or its columns are unclear.
            UserError: at the end, if the labels count from another number, or it is unclear from which.
        """
        return self._labeled(self._rows(path, labeled=True), str(path), same_columns=not may_differ(path))

    def _labeled(
        self, rows: Iterator[Row | ChoiceExample | UserError], where: str, same_columns: bool
    ) -> Iterator[ChoiceExample | UserError]:
        """Convert rows with labels, wherever they are from."""
        numbering = Numbering()
        kept = leave_out(rows, (self.context, self.question, self.label or ANSWER, *self.endings))
        yield from self._examples(kept, same_columns, labeled=True, numbering=numbering)
        if self.labels_from is None:
            numbering.require(where, self.counts_from_0)
            self.found["counts_from_0"] = numbering.first == 0 and bool(numbering.zero)

    def stream(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        """Read examples for prediction: labels may be missing or wrong, and are then None."""
        return self._examples(self._rows(path, labeled=False), not may_differ(path), labeled=False)

    def columns(self, path: Path) -> dict[str, str]:
        """Return which columns of a file are read as what: those of its first row that can be read."""
        rows = self._rows(path, labeled=False)
        layout = next((self._find_layout(row, labeled=False) for row in rows if isinstance(row, Row)), None)
        return {} if layout is None else layout.columns()

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Convert values to examples.

        Args:
            given: Dicts ({"context": …, "endings": […], "label": 2}), lists of a context and its endings, or
                `ChoiceExample`s.
            labeled: Whether they are read as in `read`, or else as in `stream`.

        Raises:
            UserError: A value is none of these. Otherwise as `read`.
        """
        rows = self._value_rows(given)
        found = (
            self._labeled(rows, "the examples", same_columns=True)
            if labeled
            else self._examples(rows, same_columns=True, labeled=False)
        )
        yield from map(raise_mistake, found)

    def _value_rows(self, given: Iterable[Any]) -> Iterator[Row | ChoiceExample]:
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            if isinstance(value, dict):
                value = _flat(row_from_python(value, place))
            elif isinstance(value, list | tuple):
                value = _from_list(value, place)
            elif not isinstance(value, ChoiceExample):
                expected = 'a context needs endings: give [context, ending, ending …] or {"context": …, "endings": […]}'
                remedy = "On the command line: --one-example CONTEXT ENDING ENDING…, or --input FILE"
                raise UserError(f"{place}: {expected}", remedy)
            yield value

    def _rows(self, path: Path, labeled: bool) -> Iterator[Row | UserError]:
        rows = read_rows(path, _codah_columns, lambda row: self._find_layout(_flat(row), labeled))
        return (_flat(row) if isinstance(row, Row) else row for row in rows)

    def _examples(
        self,
        rows: Iterator[Row | ChoiceExample | UserError],
        same_columns: bool,
        labeled: bool,
        numbering: Numbering | None = None,
    ) -> Iterator[ChoiceExample | UserError]:
        """Convert rows. numbering: receives the labels that are numbers."""
        layouts: dict[tuple[str, ...], _Layout] = {}

        def convert(row: Row) -> ChoiceExample | UserError:
            names = tuple(row.values)
            if names not in layouts:
                layouts.clear()  # rows with the same columns follow each other
                layouts[names] = self._find_layout(row, labeled)
            example = self._to_example(row, layouts[names], labeled, numbering)
            if not labeled or example.label is not None:
                return example
            remedy = "" if layouts[names].label else "Name the column of the gold ending with --task.label"
            return UserError(f"{row.place}: no label", remedy)

        return convert_rows(rows, convert, same_columns)

    def _find_layout(self, row: Row, labeled: bool) -> _Layout:
        """Find the columns of a row. Raises a UsageError that lists the columns and names the flag to choose with."""
        values, names = row.values, [name for name in row.values if name]

        def usage_error(problem: str, flags: str) -> UsageError:
            return UsageError(f"{row.place}: {problem}; its columns are: {join_names(values)}", f"Choose with {flags}")

        context, lead, used = self._find_texts(names, usage_error)
        endings = list(self.endings) or ending_columns(names, usage_error)
        if any(name not in values for name in endings):
            raise usage_error(f"no columns {join_names(endings)}", "--task.endings")
        if repeated := [name for name in endings if name in used]:
            flags = "--task.context and --task.endings"
            raise usage_error(f"{repeated[0]!r} is the context, and cannot be an ending", flags)
        labels = [self.label] if self.label else named_columns(names, _LABELS)
        free = [name for name in labels if name not in used and name not in endings]
        if labels and not free and (self.label or labeled):
            use = "is the context" if labels[0] in used else "holds endings"
            flags = "--task.context, --task.endings and --task.label"
            raise usage_error(f"{labels[0]!r} {use}, and cannot be the label", flags)
        if len(free) > 1 and labeled:
            raise usage_error("more than one column could be the label", "--task.label")
        known = _FIRST.get(tuple(name.lower() for name in (context, lead or "", *endings)))
        first = (known or 0) if self.labels_from is None else self.labels_from
        doubtful = known is None and [name[-1:] for name in endings[:2]] == ["1", "2"]
        counted = known is not None or names == _CODAH or [context, lead] == named_columns(names, ("sent1", "sent2"))
        return _Layout(context, lead, endings, free[0] if len(free) == 1 else None, first, doubtful, counted)

    def _find_texts(
        self, names: list[str], usage_error: Callable[[str, str], UsageError]
    ) -> tuple[str, str | None, set[str]]:
        """Return the columns of the context and of the text before each ending, and the columns that these use."""
        flags = "--task.context, and --task.question for a second text before the endings"
        for flag, name in (("--task.context", self.context), ("--task.question", self.question)):
            if name and name not in names:
                raise usage_error(f"no column {name!r}", flag)
        found = [self.context] if self.context else named_columns(names, _CONTEXTS)
        if len(found) > 1:
            found = [name for name in found if name not in (self.question, self.label, *self.endings)]
        lead = self.question or None
        taken = (self.context, self.label, *self.endings)
        questions = [name for name in named_columns(names, _QUESTIONS) if name not in taken]
        others = [name for name in found if name not in questions]
        if len(others) == len(questions) == 1 and not lead and (self.context or others[0].lower() in _BEFORE_QUESTION):
            found, lead = others, questions[0]
        sentences = named_columns(names, ("sent1", "sent2"))
        if len(sentences) == 2 and not lead and [name.lower() for name in found] in ([], ["startphrase"]):
            return sentences[0], sentences[1], {*found, *sentences}  # SWAG splits the first phrase in two
        if len(found) != 1:
            problem = "more than one column could be" if found else "cannot tell which column is"
            raise usage_error(f"{problem} the context", flags)
        return found[0], lead, {found[0], lead or found[0]}

    def _to_example(self, row: Row, layout: _Layout, strict_label: bool, numbering: Numbering | None) -> ChoiceExample:
        """strict_label: whether a bad label is an error. numbering: as in `_examples`."""
        values, source, place = row
        context = require_string(values[layout.context], layout.context, place)
        lead = require_string(values[layout.lead], layout.lead, place) if layout.lead else ""
        lead = _COPA.get(lead.strip().lower(), lead)
        endings, names = endings_of(values, layout.endings, place)
        read_label = partial(self._label_of, row, layout, endings, names, numbering)
        return ChoiceExample(context, lead, endings, label_or_none(read_label, strict_label), source)

    def _label_of(
        self,
        row: Row,
        layout: _Layout,
        endings: tuple[str, ...],
        names: Sequence[str],
        numbering: Numbering | None,
    ) -> int | None:
        """Return a row's label; None if it has none. Raises UserError if it means none of the endings, or two of them."""
        name, place, numbered = layout.label, row.place, self.labels_from is not None or layout.counted
        text = parse_label(row.values.get(name), name, place) if name else None
        if text is None:
            return None
        whole = text if text in names else text.removesuffix(".0")  # pandas writes 1.0 for 1 if other rows have none
        if whole in names:
            return names.index(whole)
        own = bool(names) and all(map(str.isdecimal, names))  # the data say which numbers there are
        number = None if own else parse_index(whole)
        index = None if number is None else number - layout.first
        lettered = any(len(each) == 1 for each in names)  # the data say which letters there are
        if index is None and not lettered and len(text) == 1 and text.isascii() and text.isalpha():
            index = ord(text.upper()) - ord("A")
        valid = index is not None and 0 <= index < len(endings)
        same = [at for at, ending in enumerate(endings) if ending.strip() == text]
        if number is not None and numbering is not None and (numbered or not same):
            numbering.add(number, len(endings), layout.first, layout.doubtful, place)
        if len(same) == 1 and not valid:
            return same[0]
        if same and index not in same and not numbered:
            problem = f"{name!r} is {text!r}, which could be the number of an ending or its text"
            raise UserError(f"{place}: {problem}", "If it is the number, say --task.labels-from 0, or 1")
        if valid:
            return index
        if whole.lower() in _NO_LABEL:
            return None
        listed = join_names(names) if own else f"{layout.first} to {len(endings) - 1 + layout.first}"
        from_1 = self.labels_from is None and not layout.first and number == len(endings)
        remedy = "If labels count from 1, add --task.labels-from 1" if from_1 else ""
        raise UserError(f"{place}: {name!r} is {shorten(text)!r}, and the {len(endings)} endings are {listed}", remedy)


class _Layout(NamedTuple):
    """The columns of the context, of the text before each ending, of the endings, and of the label.

    first: the number of the first ending in the labels.
    doubtful: whether the columns of endings have numbers from 1, which the labels could mean, too. counted: whether labels
    are certainly numbers, as in SWAG, CODAH and other known files.
    """

    context: str
    lead: str | None
    endings: Sequence[str]
    label: str | None
    first: int
    doubtful: bool
    counted: bool

    def columns(self) -> dict[str, str]:
        numbers = f"{self.label} (from {self.first})" if self.label else None
        uses = {"context": self.context, "before the endings": self.lead, "label": numbers}
        return {use: name for use, name in {**uses, "endings": ", ".join(self.endings)}.items() if name}


def _flat(row: Row) -> Row:
    """Return a row of ARC and CommonsenseQA, whose question holds its text and the choices, with a column for each."""
    question = row.values.get("question")
    if not isinstance(question, dict) or not {"stem", "choices"} <= question.keys():
        return row
    return row._replace(values={**row.values, "question": question["stem"], "choices": question["choices"]})


def _from_list(value: Sequence[Any], place: str) -> ChoiceExample:
    """Convert a context and its endings."""
    texts = [require_string(text, f"text {number}", place) for number, text in enumerate(value, 1)]
    if len(texts) < 3:
        raise UserError(f"{place}: a list has a context and at least 2 endings, found {len(texts)} texts")
    return ChoiceExample(texts[0], "", tuple(texts[1:]), None, place)


def _codah_columns(cells: list[str]) -> list[str] | None:
    """Recognize CODAH's files, which have no header: category (one letter), context, four endings, label."""
    is_codah = len(cells) == len(_CODAH) and len(cells[0]) == 1 and cells[-1] in ("0", "1", "2", "3")
    return _CODAH if is_codah else None
