"""Read the examples of a task: files and Python values of any form, by one reader.

Four things work together, for every task:

- A `Row` (rows.py) holds the values of a line, or of a Python value, by column. An error stands in the place of a row that cannot
  be read, and goes through all that follows, so that the caller can skip and count it, or raise it.
- The `Reader` opens the file or takes the values, puts errors in their place, leaves out rows that an annotator left out, and
  finds the columns, of each row where they may differ, else once.
- Each `ExampleKind` is a frozen dataclass in a file of its own. It declares the columns of a row, and the example
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
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from bertie.base.errors import UsageError, UserError, raise_error
from bertie.examples.in_memory import require_list
from bertie.examples.label_studio import label_studio_choice
from bertie.examples.labels import LabelRules
from bertie.examples.left_out import ANSWER, LeftOutError, leave_out
from bertie.examples.rows import PROBED_ROWS, Row, convert_rows, file_format, is_stdin, read_rows, row_from_python
from bertie.files.formats import NamesOfHeaderless

T = TypeVar("T")
_MOST_COLUMNS = 1000  # in memory, for .jsonl files where each row has other keys


@dataclass(frozen=True)
class DataFormat:
    """How to read a file, as detected from the whole training file. None: not certain."""

    separator: str | None = None
    """The separator of the labels of a cell."""
    end: Literal["last", "after"] | None = None
    """Which token or character the end of a span names: its last, or the one after it."""
    has_comments: bool | None = None
    """Whether lines of a CoNLL file that begin with "#" and could be words are comments."""
    first_ending: int | None = None
    """The number of the first ending in the labels of multiple choice."""


@dataclass(frozen=True)
class KindFacts:
    """Facts of a kind of examples that no setting changes."""

    examples: tuple[type, ...] = ()
    """Classes of Python values that are examples already."""
    flat: Callable[[Row], Row] | None = None
    """Replaces nested values of a row by columns."""
    split: Callable[[Row], Iterable[Row]] | None = None
    """Replaces a row by one for each of its examples."""
    headerless: NamesOfHeaderless | None = None
    """Recognizes tables without a header."""
    same_by_name: bool = True
    """Whether rows whose columns have the same names have the same `columns`."""
    answer: str = ""
    """The setting that, if empty, may stand for a column `ANSWER`."""
    columns_of_file: Callable[[Any, Path], dict[str, str]] | None = None
    """Returns the columns of a file without rows by their use, for a kind; nothing of other files."""


class ExampleKind(Protocol):
    """A kind of examples: a frozen dataclass whose fields are the columns that settings name."""

    @property
    def facts(self) -> KindFacts: ...

    @property
    def data_format(self) -> DataFormat:
        """That of the training file, or of the file that is read once `resolved` has found it."""
        ...

    @property
    def label_rules(self) -> LabelRules | None:
        """How to tell labels from those that mean that the label is unknown. None: every label is one."""
        ...

    def rows(self, path: Path, labeled: bool) -> Iterator[Any]:
        """Yield the rows of a file, and examples where it has no columns, with an error in place of a bad one.

        Raises:
            UsageError: The file is missing, or of a format that this kind does not read.
            UserError: It cannot be read as a whole.
        """
        ...

    def from_python(self, value: Any, place: str, source: str) -> Any:
        """Return a Python value that is no dict, or a line of text, as a row or as an example.

        Raises:
            UserError: It is neither.
        """
        ...

    def resolved(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> ExampleKind:
        """Return the kind with what all rows together say in its `data_format`, or in its settings.

        Args:
            rows: The rows, as `rows` yields them.
            path: The file; None: the rows are values in Python.
            labeled: Whether labels are needed.

        Raises:
            UsageError: There is a doubt that matters.
        """
        ...

    def columns(self, row: Row, labeled: bool) -> Any:
        """Return the columns of a row. Their `uses` are their names by use: {"text": "sentence", "label": None}.

        Raises:
            UsageError: They are unclear. The message does not name the place.
        """
        ...

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
        ...


@dataclass(frozen=True)
class Reader:
    """Reads the examples of a kind, from files and from Python."""

    kind: ExampleKind
    is_resolved: bool = False
    """Whether `kind` knows what all rows together say."""

    def read(self, source: str | Path | Iterable[Any]) -> Iterator[Any]:
        """Yield the labeled examples of a file, for training, evaluation and scoring, with an error in place of each bad row;
        or of Python values, as `values`.

        Raises:
            UsageError: The file is missing, its columns are unclear, or it leaves a doubt that only the user can settle.
            UserError: It cannot be read as a whole.
        """
        is_file = isinstance(source, str | Path)
        return self._examples(Path(source), labeled=True) if is_file else self.values(source, labeled=True)

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

    def columns(self, path: Path) -> dict[str, str]:
        """Return the columns of a file by their use, from its first good row, and under "unused" the rest.

        Returns nothing for stdin, which is read once.
        """
        if is_stdin(path):
            return {}
        of_file = self.kind.facts.columns_of_file
        if of_file and (columns := of_file(self.kind, path)):
            return columns
        for row in islice(self._rows(path, labeled=False), PROBED_ROWS):
            with suppress(UserError):
                if isinstance(row, Row):
                    uses = {use: name for use, name in self.kind.columns(row, labeled=False).uses.items() if name}
                    used = ["", *uses.values(), *", ".join(uses.values()).replace(" (from", ", ").split(", ")]
                    unused = ", ".join(name for name in row.values if name not in used)
                    return uses | {"unused": unused} if unused else uses
        return {}

    def rows(self, source: Path | Iterable[Any], labeled: bool = True) -> Iterator[Any]:
        """Yield the rows of a source with all their columns, as they are; examples and errors where there are none."""
        rows = self.kind.rows(source, labeled) if isinstance(source, Path) else self._rows_of_values(source)
        if (split := self.kind.facts.split) is None:
            return rows
        return (part for row in rows for part in (split(row) if isinstance(row, Row) else [row]))

    def resolve(self, source: Path | Iterable[Any], labeled: bool = True) -> Reader:
        """Return the reader that knows what all rows of a source together say, if it can be read twice. Errors as `read`."""
        path = source if isinstance(source, Path) else None
        twice = isinstance(source, list | tuple) if path is None else not is_stdin(path)
        if self.is_resolved or not twice:
            return self
        return Reader(self.kind.resolved(self._rows(source, labeled), path, labeled), is_resolved=True)

    def _rows(self, source: Path | Iterable[Any], labeled: bool) -> Iterator[Any]:
        kind, flat, settings = self.kind, self.kind.facts.flat, vars(self.kind)
        rows = convert_rows(self.rows(source, labeled), flat) if flat else self.rows(source, labeled)
        is_read = ANSWER in settings.values() or settings.get(kind.facts.answer) == ""
        return leave_out(rows, is_read) if labeled else rows

    def _rows_of_values(self, values: Iterable[Any]) -> Iterator[Any]:
        for number, value in enumerate(values, 1):
            place = f"example {number}"
            if isinstance(value, dict):
                yield row_from_python(value, place)
            else:
                known = isinstance(value, self.kind.facts.examples)
                yield value if known else self.kind.from_python(value, place, place)

    def _examples(self, source: Path | Iterable[Any], labeled: bool) -> Iterator[Any]:
        """Return the example of each row, or an error in its place."""
        reader, path = self.resolve(source, labeled), source if isinstance(source, Path) else None
        return reader._converted(reader._rows(source, labeled), path, labeled)

    def _converted(self, rows: Iterator[Any], path: Path | None, labeled: bool) -> Iterator[Any]:
        kind, seen = self.kind, dict[Any, Any]()

        @lru_cache(_MOST_COLUMNS)
        def columns_named(names: tuple[str, ...]) -> Any:
            return kind.columns(Row(dict.fromkeys(names), "", ""), labeled)

        def find(row: Row) -> Any:
            return columns_named(tuple(row.values)) if kind.facts.same_by_name else kind.columns(row, labeled)

        for number, (row, columns) in enumerate(_with_columns(rows, path, find), 1):
            seen["number"] = number
            try:
                example = kind.to_example(row, columns, labeled, seen) if isinstance(row, Row) else row
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


def resolved_alike(kind: T, rows: Iterator[Any], path: Path | None, labeled: bool) -> T:  # noqa: ARG001
    """Return the kind: `ExampleKind.resolved` of a kind whose rows say everything by themselves."""
    return kind


def rows_or_lines(kind: ExampleKind, path: Path, labeled: bool) -> Iterator[Any]:
    """Yield the rows of a file, or the examples that its lines are if it is a .txt: `ExampleKind.rows` of several kinds."""
    rows = read_rows(path, kind.facts.headerless)
    if file_format(path) == "json":
        return convert_rows(rows, label_studio_choice)
    if file_format(path) != "txt":
        return rows
    if labeled:
        problem = "a line of .txt or stdin is a text without a label"
        raise UsageError(f"{path}: {problem}: give a .tsv, .csv or .jsonl")
    return convert_rows(rows, lambda row: kind.from_python(row.values["text"], row.place, row.source))
