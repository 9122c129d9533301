"""Read the examples of a task: files and Python values of any form, by one reader.

Four things work together, for every task:

- A `Row` (rows.py) holds the values of a line, or of a Python value, by column. An error stands in the place of a row that cannot
  be read, and goes through all that follows, so that the caller can skip and count it, or raise it.
- The `Reader` opens the file or takes the values, puts errors in their place, leaves out rows that an annotator left out, and
  finds the columns, of each row where they may differ, else once.
- Each kind of examples is a subclass, a frozen dataclass in a file of its own. It declares the columns of a row, and the example
  that a row becomes. For files without rows of columns, such as SQuAD's .json or CoNLL's, it has functions from a file to rows or
  examples, in `rows`.
- The `DataFormat` holds facts that only the whole file tells, such as the separator of labels: `resolved` finds them in a pass
  before the rows are read. Where a file leaves a doubt, the training file decides: a task keeps its `data_format`, also in
  task.json. If there is none, a UsageError names the flag.

All labels together tell which of them mean that the label is unknown, and which are written in several ways: see labels.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from bertie.config import NoFlag
from bertie.errors import UsageError, UserError, raise_error
from bertie.files.formats import NamesOfHeaderless
from bertie.tasks.data.in_memory import require_list
from bertie.tasks.data.labels import LabelRules
from bertie.tasks.data.left_out import LeftOutError, leave_out
from bertie.tasks.data.rows import PROBED_ROWS, Row, convert_rows, file_format, is_stdin, read_rows, row_from_python

_MOST_COLUMNS = 1000  # in memory, for .jsonl files where each row has other keys


@dataclass(frozen=True)
class DataFormat:
    """How to read a file, as the training file as a whole shows. None: nothing that is certain."""

    separator: str | None = None
    """The separator of the labels of a cell."""
    end: Literal["last", "after"] | None = None
    """Which token the end of a span names: its last, or the one after it."""
    has_comments: bool | None = None
    """Whether lines of a CoNLL file that begin with "#" and could be words are comments."""
    first_ending: int | None = None
    """The number of the first ending in the labels of multiple choice."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads the examples of one kind, from files and from Python. The fields of a subclass are the columns that settings name."""

    data_format: NoFlag[DataFormat] = DataFormat()
    """That of the training file, or of the file that is read once `resolved` has found it."""
    is_resolved: NoFlag[bool] = False
    """Whether `data_format` has what all rows together say."""
    examples: ClassVar[tuple[type, ...]] = ()
    """Classes of Python values that are examples already."""
    flat: ClassVar[Callable[[Row], Row] | None] = None
    """Replaces nested values of a row by columns."""
    headerless: ClassVar[NamesOfHeaderless | None] = None
    """Recognizes tables without a header."""
    same_by_name: ClassVar[bool] = True
    """Whether rows whose columns have the same names have the same `columns`."""

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that settings name, among other values of settings."""
        return tuple(value for value in vars(self).values() if isinstance(value, str))

    @property
    def label_rules(self) -> LabelRules | None:
        """How to tell labels from those that mean that the label is unknown. None: every label is one."""
        return None

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:
        """Yield the rows of a file, and examples where it has no columns, with an error in place of a bad one.

        Raises:
            UsageError: The file is missing, or of a format that this kind does not read.
            UserError: It cannot be read as a whole.
        """
        rows = read_rows(path, self.headerless)
        if file_format(path) != "txt":
            return rows
        if labeled:
            problem = "a line is a text, without labels, in .txt and stdin"
            raise UsageError(f"{path}: {problem}: give a .tsv, .csv or .jsonl")
        return convert_rows(rows, lambda row: self.from_python(row.values["text"], row.place, row.source))

    def from_python(self, value: Any, place: str, source: str) -> Any:
        """Return a Python value that is no dict, or a line of text, as a row or as an example.

        Raises:
            UserError: It is neither.
        """
        raise NotImplementedError

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> Self:  # noqa: ARG002
        """Return the reader with what all rows together say in its `data_format`, or in its settings.

        Args:
            rows: The rows, as `rows` yields them.
            path: The file; None: the rows are values in Python.
            labeled: Whether labels are needed.

        Raises:
            UsageError: There is a doubt that matters.
        """
        return self

    def columns(self, row: Row, labeled: bool) -> Any:
        """Return the columns of a row. Their `uses` are their names by use: {"text": "sentence", "label": "label"}.

        Raises:
            UsageError: They are unclear. The message does not name the place.
        """
        raise NotImplementedError

    def to_example(self, row: Row, columns: Any, labeled: bool, seen: dict[Any, Any]) -> Any:
        """Return the example of a row.

        Args:
            row: The row.
            columns: The result of `columns` for it.
            labeled: Whether it needs a label. Without, a bad label is None.
            seen: Notes of this function on the rows of the same file before, and the "number" of this row, from 1.

        Raises:
            UserError: The row is bad.
            UsageError: It contradicts the rows before, so that the file cannot be read.
        """
        raise NotImplementedError

    def read(self, path: Path) -> Iterator[Any]:
        """Yield the labeled examples of a file, for training, evaluation and scoring, with an error in place of each bad row.

        Raises:
            UsageError: The file is missing, its columns are unclear, or it leaves a doubt that only the user can settle.
            UserError: It cannot be read as a whole.
        """
        return self._examples(path, labeled=True)

    def stream(self, path: Path) -> Iterator[Any]:
        """Yield the examples of a file lazily, for prediction: one example or error for each row, in order.

        Labels are not needed, and bad ones are None. Raises errors as `read`.
        """
        return self._examples(path, labeled=False)

    def values(self, given: Iterable[Any], labeled: bool = False) -> Iterator[Any]:
        """Yield the example of each Python value, such as a dict or a string: as `read` if `labeled`, else lazily as `stream`.

        Raises:
            UsageError: The columns are unclear, or there is a doubt.
            UserError: For the first bad value.
        """
        values = list(require_list(given)) if labeled else require_list(given)
        for item in self._examples(values, labeled):
            yield item if isinstance(item, LeftOutError) else raise_error(item)

    def file_columns(self, path: Path) -> dict[str, str]:
        """Return the columns of a file by their use: those of its first good row. Nothing of stdin, which is read once."""
        for row in () if is_stdin(path) else islice(self._rows(path, labeled=False), PROBED_ROWS):
            with suppress(UserError):
                if isinstance(row, Row):
                    return self.columns(row, labeled=False).uses
        return {}

    def resolve(self, source: Path | Iterable[Any], labeled: bool = True) -> Self:
        """Return the reader that knows what all rows of a source together say, if it can be read twice. Errors as `read`."""
        path = source if isinstance(source, Path) else None
        twice = isinstance(source, list | tuple) if path is None else not is_stdin(path)
        if self.is_resolved or not twice:
            return self
        return replace(self.resolved(self._rows(source, labeled), path, labeled), is_resolved=True)

    def _rows(self, source: Path | Iterable[Any], labeled: bool) -> Iterator[Any]:
        rows = self.rows(source, labeled) if isinstance(source, Path) else self._rows_of_values(source)
        rows = convert_rows(rows, self.flat) if self.flat else rows
        return leave_out(rows, self.named) if labeled else rows

    def _rows_of_values(self, values: Iterable[Any]) -> Iterator[Any]:
        for number, value in enumerate(values, 1):
            place = f"example {number}"
            if isinstance(value, dict):
                yield row_from_python(value, place)
            else:
                yield value if isinstance(value, self.examples) else self.from_python(value, place, place)

    def _examples(self, source: Path | Iterable[Any], labeled: bool) -> Iterator[Any]:
        """Return the example of each row, or an error in its place."""
        reader, path = self.resolve(source, labeled), source if isinstance(source, Path) else None
        return reader._converted(reader._rows(source, labeled), path, labeled)

    def _converted(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> Iterator[Any]:
        seen: dict[Any, Any] = {}
        known: dict[tuple[str, ...], Any] = {}

        def find(row: Row) -> Any:
            if not self.same_by_name:
                return self.columns(row, labeled)
            names = tuple(row.values)
            if (columns := known.get(names)) is None:
                if len(known) == _MOST_COLUMNS:
                    known.clear()
                columns = known[names] = self.columns(row, labeled)
            return columns

        for number, (row, columns) in enumerate(_with_columns(rows, path, find), 1):
            seen["number"] = number
            try:
                example = self.to_example(row, columns, labeled, seen) if isinstance(row, Row) else row
            except UsageError:
                raise
            except UserError as error:
                example = error
            yield example


def _with_columns(rows: Iterator[Any], path: Path | None, find: Callable[[Row], Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each row with its columns, which `find` returns.

    Where rows may have different columns, as in .jsonl, an error takes the place of a row that lacks those that are needed.

    Raises:
        UsageError: A row lacks them, or all of the first PROBED_ROWS where they may differ.
    """
    problem: UsageError | None = None
    pending: list[tuple[Any, Any]] = []
    settled = not (may_differ := path is not None and file_format(path) in ("jsonl", "json"))
    for row in rows:
        columns = None
        if isinstance(row, Row):
            try:
                columns = find(row)
                settled = True
            except UsageError as error:
                if not may_differ:
                    raise UsageError(f"{path or row.place}: {error.problem}", error.remedy) from error
                problem = problem or UsageError(f"{path}: {error.problem}", error.remedy)
                row = UserError(f"{row.place}: {error.problem}", error.remedy)
        if settled and not pending:
            yield row, columns
            continue
        pending.append((row, columns))
        if settled or problem is None:
            yield from pending
            pending.clear()
        elif len(pending) == PROBED_ROWS:
            break
    if problem is not None and not settled:
        raise problem
