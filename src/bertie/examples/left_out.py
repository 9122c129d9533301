"""Rows that their annotator left out: by Prodigy's "answer", or Label Studio's "was_cancelled"; and rows that are skipped.

Prodigy writes one of three answers into each row (https://prodi.gy/docs/api-interfaces). "accept": the annotation is right.
"reject": it is wrong, and nobody says what is right. "ignore": the annotator skipped the text. Label Studio marks skipped texts
with "was_cancelled".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bertie.base import console
from bertie.base.errors import UserError
from bertie.examples.rows import Row

T = TypeVar("T")
ANSWER, CANCELLED = "answer", "was_cancelled"
_OUT = ("reject", "ignore")


class LeftOutError(UserError):
    """In place of a row that its annotator left out: it is no example, and no mistake of the file.

    Attributes:
        mark: How the row says so.
    """

    def __init__(self, place: str, mark: str = ""):
        super().__init__(f"{place}: its annotator left it out: {mark}")
        self.mark = mark


def leave_out(rows: Iterable[T], answer_is_read: bool = False) -> Iterator[T | UserError]:
    """Put an error in place of each row that its annotator left out. Other items stay.

    Args:
        rows: The rows.
        answer_is_read: Whether the caller reads the column `ANSWER` as something else.
    """
    for row in rows:
        mark = ""
        if isinstance(row, Row):
            answer = str(row.values.get(ANSWER)).strip().lower()
            mark = CANCELLED if row.values.get(CANCELLED) is True else answer * (answer in _OUT and not answer_is_read)
        yield LeftOutError(row.place, mark) if isinstance(row, Row) and mark else row


def valid_examples(examples: Iterable[T | UserError], where: str, strict: bool = False) -> list[T]:
    """Return the examples without errors, and say how many errors there are, and how many rows their annotator left out.

    Args:
        examples: Examples, with errors in place of bad rows.
        where: The file, for error messages.
        strict: Raise the first error that is no `LeftOutError`.

    Raises:
        UserError: if there is no example, or for the first error if `strict`.
    """
    good: list[T] = []
    bad: list[UserError] = []
    marks: Counter[str] = Counter()
    for example in examples:
        if isinstance(example, LeftOutError):
            marks[example.mark] += 1
        elif not isinstance(example, UserError):
            good.append(example)
        elif strict:
            raise example
        else:
            bad.append(example)
    if bad and not good:
        raise bad[0]
    rows = f"{console.plural(marks.total(), 'row')} ({', '.join(f'{mark} {count:,}' for mark, count in marks.items())})"
    if not good:
        raise UserError(f"{where}: " + (f"the annotator left out all {rows}" if marks else "no examples in it"))
    if marks:
        console.info(f"{where}: the annotator left out {rows}")
    if bad:
        skipped = f"{len(bad):,} of {len(bad) + len(good):,} rows are skipped (--strict refuses them)"
        console.warn(f"{skipped}, first {bad[0]}")
    return good
