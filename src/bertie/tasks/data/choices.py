"""Examples of a start and several endings, one of them right: SWAG's .csv, CODAH's .tsv, any table with such columns, .jsonl."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import (
    Row,
    join_names,
    label,
    parse_index,
    require_distinct_columns,
    require_list,
    row_from_python,
    rows,
    shorten,
    skip_until_columns,
    string,
)

_STARTS = ("startphrase", "context", "question", "premise", "text", "prompt")
_LABELS = ("label", "answer", "gold")
_NUMBERED = re.compile(r"ending\d+", re.IGNORECASE)
_OWN_KEYS = ".jsonl"  # its rows may have keys of their own, where those of a table have the same columns
_CODAH = ["category", "context", "ending0", "ending1", "ending2", "ending3", "label"]


@dataclass(frozen=True)
class ChoiceExample:
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
            require_distinct_columns(context=self.context, label=self.label, endings=ending)
        if len(set(self.endings)) < len(self.endings):
            raise UsageError(f"task.endings names a column twice: {join_names(self.endings)}")
        if numbers := [name for name in self.endings if name.isdecimal()]:
            told = f"task.endings: is a label {numbers[0]} the column of this name, or the ending of this number?"
            raise UsageError(f"{told} Name the columns otherwise")


@dataclass(frozen=True)
class ChoiceReader:
    """Endings are the columns ending0, ending1 …, or the strings of a .jsonl row's list "endings" or "choices"."""

    columns: ChoiceColumns = ChoiceColumns()

    def read(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        """With labels, for training and evaluation. Errors, raised: UsageError; UserError, at the end, where labels are counted
        from 1."""
        said: set[str] = set()
        most = 0
        for found in self._choices(path, self._told(self._rows(path, labelled=True), said), labelled=True):
            most = max(most, len(found.endings) if isinstance(found, ChoiceExample) else 0)
            yield found
        if str(most) in said and "0" not in said:
            raise UserError(
                f"{path}: the right endings are numbered from 1 to {most}, and must be from 0 to {most - 1}"
            )

    def stream(self, path: Path) -> Iterator[ChoiceExample | UserError]:
        return self._choices(path, self._rows(path, labelled=False), labelled=False)

    def _rows(self, path: Path, labelled: bool) -> Iterator[Row | UserError]:
        def find(row: Row) -> _Uses:
            return self._uses(row, labelled)

        found = rows(path, _headless)
        return skip_until_columns(found, path, find) if path.suffix == _OWN_KEYS else found

    def values(self, given: Iterable[Any]) -> Iterator[ChoiceExample]:
        """From dicts ({"context": …, "endings": […], "label": 2}) or Choices. Errors: UserError."""
        for number, value in enumerate(require_list(given), 1):
            place = f"example {number}"
            if isinstance(value, dict):
                value = self._choice(row_from_python(value, place), labelled=True, needed=False)
            elif not isinstance(value, ChoiceExample):
                wanted = 'expected {"context": …, "endings": […]} (in a file: --input) or a Choice'
                raise UserError(f"{place}: {wanted}, got {type(value).__name__}")
            yield value

    def _choices(
        self, path: Path, found: Iterator[Row | UserError], labelled: bool
    ) -> Iterator[ChoiceExample | UserError]:
        for row in found:
            try:
                choice = self._choice(row, labelled, needed=labelled) if isinstance(row, Row) else row
            except UserError as error:
                if isinstance(error, UsageError) and path.suffix != _OWN_KEYS:  # it is wrong with all
                    raise
                yield UserError(str(error))
                continue
            if labelled and isinstance(choice, ChoiceExample) and choice.label is None:
                choice = UserError(f"{row.place if isinstance(row, Row) else choice.source}: no label")
            yield choice

    def _told(self, found: Iterator[Row | UserError], said: set[str]) -> Iterator[Row | UserError]:
        """The same rows; what their labels are is put down."""
        for row in found:
            if isinstance(row, Row):
                with suppress(UsageError):  # which is raised, or told of the row, where it is read
                    right = self._uses(row, labelled=True).label
                    said.add(str(row.values.get(right) if right else None).strip())
            yield row

    def _uses(self, row: Row, labelled: bool) -> _Uses:
        """Which columns hold what. Errors: UsageError that lists them and says which flag chooses among them."""
        values, known = row.values, {name.lower(): name for name in row.values if name}

        def refuse(problem: str, flags: str) -> UsageError:
            return UsageError(f"{row.place}: {problem}; its columns are: {join_names(values)}. Choose with {flags}")

        start = self.columns.context or next((known[name] for name in _STARTS if name in known), "")
        if not start or start not in values:
            told = f"no column {start!r}" if start else "cannot tell which column is the start"
            raise refuse(told, "--task.context")
        starts, lead = {start}, None
        if start == known.get("startphrase") and "sent1" in known and "sent2" in known:  # SWAG: the start, cut in two
            starts, lead = {start, known["sent1"], known["sent2"]}, known["sent2"]
            start = known["sent1"]
        endings = self.columns.endings or _ending_columns(known)
        if not endings or any(name not in values for name in endings):
            numbered = "no endings to choose among, in columns ending0, ending1 … or a list"
            raise refuse(f"no columns {join_names(endings)}" if endings else numbered, "--task.endings")
        if twice := [name for name in endings if name in starts]:
            raise refuse(f"{twice[0]!r} is the start, and cannot be an ending", "--task.context and --task.endings")
        named = self.columns.label
        labels = [named] if named else [known[name] for name in _LABELS if name in known]
        free = [name for name in labels if name not in starts and name not in endings]
        if labels and not free and (named or labelled):
            is_used = "is the start" if labels[0] in starts else "holds endings"
            flags = "--task.context, --task.endings and --task.label"
            raise refuse(f"{labels[0]!r} {is_used}, and cannot be the label", flags)
        return _Uses(start, lead, endings, free[0] if free else None)

    def _choice(self, row: Row, labelled: bool, needed: bool) -> ChoiceExample:
        """labelled: whether a label that is none is an error; needed: whether there has to be a column of it."""
        values, source, place = row
        uses = self._uses(row, needed)
        lead = string(values[uses.lead], "sent2", place) if uses.lead else ""
        endings = _endings(values, uses.endings, place)
        try:
            number = _number(values, uses, len(endings), place)
        except UserError:
            if labelled:
                raise
            number = None  # as in test sets that have -1 for all
        return ChoiceExample(string(values[uses.start], uses.start, place), lead, endings, number, source)


class _Uses(NamedTuple):
    """Columns: of the start, of what begins each ending, of the endings, of the label."""

    start: str
    lead: str | None
    endings: Sequence[str]
    label: str | None


def _ending_columns(known: dict[str, str]) -> tuple[str, ...]:
    """known: from names in lower case to those of the columns."""
    listed = [known[name] for name in ("endings", "choices") if name in known][:1]
    numbered = sorted((name for name in known if _NUMBERED.fullmatch(name)), key=lambda name: int(name[6:]))
    return tuple(listed or [known[name] for name in numbered])


def _endings(values: dict[str, Any], names: Sequence[str], place: str) -> tuple[str, ...]:
    first = names[0]
    if len(names) > 1 or _NUMBERED.fullmatch(first):
        endings = [(name, values[name]) for name in names]
        while endings and endings[-1][1] is None:  # some questions have fewer
            endings.pop()
    elif isinstance(values[first], list):
        endings = [(first, ending) for ending in values[first]]
    else:
        raise UserError(f"{place}: the endings must be a list of strings, found {shorten(str(values[first]))!r}")
    if len(endings) < 2:
        raise UserError(f"{place}: {len(endings)} endings to choose among, where two are the least")
    return tuple(string(ending, name, place) for name, ending in endings)


def _number(values: dict[str, Any], uses: _Uses, endings: int, place: str) -> int | None:
    """A row's label: None where there is none. Errors: UserError where it is no ending's number or column."""
    said = label(values.get(uses.label), uses.label, place) if uses.label else None
    if said is None:
        return None
    number = uses.endings.index(said) if said in uses.endings else parse_index(said)
    if number is None or number >= endings:
        raise UserError(
            f"{place}: {uses.label!r} is {shorten(said)!r}, and the {endings} endings are 0 to {endings - 1}"
        )
    return number


def _headless(cells: list[str]) -> list[str] | None:
    """CODAH's files have no names: a category's letter, the start, four endings, the right one's number."""
    is_codah = len(cells) == len(_CODAH) and len(cells[0]) == 1 and cells[-1] in ("0", "1", "2", "3")
    return _CODAH if is_codah else None
