"""Examples of a start and several endings, one of them right: SWAG's .csv, CODAH's .tsv, any table with such columns, .jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    Row,
    given_row,
    label,
    listing,
    require_apart,
    rows,
    several,
    short,
    string,
    whole_number_of,
)

_STARTS = ("startphrase", "context", "question", "premise", "text", "prompt")
_LABELS = ("label", "answer", "gold")
_NUMBERED = re.compile(r"ending\d+", re.IGNORECASE)
_CODAH = ["category", "context", "ending0", "ending1", "ending2", "ending3", "label"]


@dataclass(frozen=True)
class Choice:
    """context: what is there; lead: how each ending begins (SWAG's sent2; else empty); label: the right ending's number."""

    context: str
    lead: str
    endings: tuple[str, ...]
    label: int | None
    source: str


@dataclass(frozen=True)
class ChoiceColumns:
    context: str = ""
    """Column of the start (empty: found from the header)."""
    label: str = ""
    """Column of the right ending's number, from 0, or of the name of its column (empty: found from the header)."""
    endings: tuple[str, ...] = ()
    """Columns of the endings, in order, or the one that holds a list (empty: ending0, ending1 …, endings or choices)."""

    def __post_init__(self) -> None:
        for ending in self.endings or ("",):
            require_apart(context=self.context, label=self.label, endings=ending)
        if len(set(self.endings)) < len(self.endings):
            raise UsageError(f"task.endings names a column twice: {listing(self.endings)}")
        if numbers := [name for name in self.endings if name.isdecimal()]:
            told = f"task.endings: is a label {numbers[0]} the column of this name, or the ending of this number?"
            raise UsageError(f"{told} Name the columns otherwise")


@dataclass(frozen=True)
class Choices:
    """Endings are the columns ending0, ending1 …, or the strings of a .jsonl row's list "endings" or "choices"."""

    columns: ChoiceColumns = ChoiceColumns()

    def read(self, path: Path) -> Iterator[Choice | UserError]:
        """With labels, for training and evaluation. Errors, raised: UsageError; UserError, at the end, where labels are counted
        from 1."""
        said: set[str] = set()
        most = 0
        for found in self._choices(self._told(rows(path, _headless), said), labelled=True):
            most = max(most, len(found.endings) if isinstance(found, Choice) else 0)
            yield found
        if str(most) in said and "0" not in said:
            raise UserError(
                f"{path}: the right endings are numbered from 1 to {most}, and must be from 0 to {most - 1}"
            )

    def stream(self, path: Path) -> Iterator[Choice | UserError]:
        return self._choices(rows(path, _headless), labelled=False)

    def values(self, given: Iterable[Any]) -> Iterator[Choice]:
        """From dicts ({"context": …, "endings": […], "label": 2}) or Choices. Errors: UserError."""
        for number, value in enumerate(several(given), 1):
            place = f"example {number}"
            if isinstance(value, dict):
                value = self._choice(given_row(value, place), labelled=True)
            elif not isinstance(value, Choice):
                wanted = 'expected {"context": …, "endings": […]} (in a file: --input) or a Choice'
                raise UserError(f"{place}: {wanted}, got {type(value).__name__}")
            yield value

    def _choices(self, found: Iterator[Row | UserError], labelled: bool) -> Iterator[Choice | UserError]:
        first = True
        for row in found:
            try:
                choice = self._choice(row, labelled) if isinstance(row, Row) else row
            except UserError as error:
                if first and isinstance(error, UsageError):
                    raise
                yield UserError(str(error))
                continue
            if labelled and isinstance(choice, Choice) and choice.label is None:
                choice = UserError(f"{row.place if isinstance(row, Row) else choice.source}: no label")
            yield choice
            first = False

    def _told(self, found: Iterator[Row | UserError], said: set[str]) -> Iterator[Row | UserError]:
        """The same rows; what their labels are is put down."""
        for row in found:
            if isinstance(row, Row):
                said.add(str(row.values.get(self._right(row.values))).strip())
            yield row

    def _right(self, values: dict[str, Any]) -> str:
        """The label's column; empty: none."""
        known = {name.lower(): name for name in values}
        return self.columns.label or next((known[name] for name in _LABELS if name in known), "")

    def _choice(self, row: Row, labelled: bool) -> Choice:
        values, source, place = row
        known = {name.lower(): name for name in values}
        start = self.columns.context or next((known[name] for name in _STARTS if name in known), "")
        if start not in values:
            told = f"no column {start!r}" if start else "cannot tell which column is the start"
            raise UsageError(f"{place}: {told}; its columns are: {listing(values)}. Choose with --task.context")
        lead = ""
        if start == known.get("startphrase") and "sent1" in known and "sent2" in known:  # SWAG: the start, cut in two
            start, lead = known["sent1"], string(values[known["sent2"]], "sent2", place)
        names = self.columns.endings or _ending_columns(known)
        endings = _endings(values, names, place)
        right = self._right(values)
        try:
            number = _number(values.get(right), right, names, len(endings), place)
        except UserError:
            if labelled:
                raise
            number = None  # as in test sets that have -1 for all
        return Choice(string(values[start], start, place), lead, endings, number, source)


def _ending_columns(known: dict[str, str]) -> tuple[str, ...]:
    """known: from names in lower case to those of the columns."""
    listed = [known[name] for name in ("endings", "choices") if name in known][:1]
    numbered = sorted((name for name in known if _NUMBERED.fullmatch(name)), key=lambda name: int(name[6:]))
    return tuple(listed or [known[name] for name in numbered])


def _endings(values: dict[str, Any], names: Sequence[str], place: str) -> tuple[str, ...]:
    if not names or any(name not in values for name in names):
        numbered = "no endings to choose among, in columns ending0, ending1 … or a list"
        told = f"no columns {listing(names)}" if names else numbered
        raise UsageError(f"{place}: {told}; its columns are: {listing(values)}. Choose with --task.endings")
    first = names[0]
    if len(names) > 1 or _NUMBERED.fullmatch(first):
        endings = [(name, values[name]) for name in names]
        while endings and endings[-1][1] is None:  # some questions have fewer
            endings.pop()
    elif isinstance(values[first], list):
        endings = [(first, ending) for ending in values[first]]
    else:
        raise UserError(f"{place}: the endings must be a list of strings, found {short(str(values[first]))!r}")
    if len(endings) < 2:
        raise UserError(f"{place}: {len(endings)} endings to choose among, where two are the least")
    return tuple(string(ending, name, place) for name, ending in endings)


def _number(value: Any, name: str, names: Sequence[str], endings: int, place: str) -> int | None:
    """A row's label: None where there is none. Errors: UserError where it is no ending's number or column."""
    said = label(value, name, place)
    if said is None:
        return None
    number = names.index(said) if said in names else whole_number_of(said)
    if number is None or number >= endings:
        raise UserError(f"{place}: {name!r} is {short(said)!r}, and the {endings} endings are 0 to {endings - 1}")
    return number


def _headless(cells: list[str]) -> list[str] | None:
    """CODAH's files have no names: a category's letter, the start, four endings, the right one's number."""
    is_codah = len(cells) == len(_CODAH) and len(cells[0]) == 1 and cells[-1] in ("0", "1", "2", "3")
    return _CODAH if is_codah else None
