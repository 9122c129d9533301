"""Rows that their annotator left out: by Prodigy's "answer", or Label Studio's "was_cancelled".

Prodigy writes one of three answers into each row (https://prodi.gy/docs/api-interfaces). "accept": the annotation is right.
"reject": it is wrong, and nobody says what is right. "ignore": the annotator skipped the text. Label Studio marks skipped texts
with "was_cancelled".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

from bertie.errors import UserError, shorten
from bertie.tasks.data.rows import LeftOutError, Row

T = TypeVar("T")
ANSWER, CANCELLED = "answer", "was_cancelled"
_ACCEPTED, _OUT = "accept", ("reject", "ignore")
_PRODIGY = ("_task_hash", "_input_hash", "spans")  # columns of which one shows that Prodigy wrote the answer


def left_out(row: Row, used: Collection[str]) -> UserError | None:
    """Return the error of a row that its annotator left out, or whose answer is unknown; None for other rows.

    Args:
        row: The row.
        used: The columns that the caller reads as something else.
    """
    values, place = row.values, row.place
    if CANCELLED in values and values[CANCELLED] is True:
        return LeftOutError(place, CANCELLED)
    answer = values.get(ANSWER)
    if answer is None or ANSWER in used or answer == _ACCEPTED:
        return None
    if answer in _OUT:
        return LeftOutError(place, answer)
    is_misspelled = isinstance(answer, str) and answer.strip().lower() in (_ACCEPTED, *_OUT)
    if not is_misspelled and not any(name in values for name in _PRODIGY):
        return None  # a column of another meaning
    return UserError(f"{place}: its annotator's {ANSWER!r} is {shorten(repr(answer))}: it is accept, reject or ignore")


def leave_out(rows: Iterable[T], used: Collection[str] = ()) -> Iterator[T | UserError]:
    """Put an error in place of each row that `left_out` has one for. Other items stay. Arguments as of `left_out`."""
    for row in rows:
        if isinstance(row, Row) and (ANSWER in row.values or CANCELLED in row.values):
            yield left_out(row, used) or row
        else:
            yield row


def raise_mistake(row: T | UserError) -> T | LeftOutError:
    """Return a row, or raise the error that is in its place, unless its annotator left it out."""
    if isinstance(row, UserError) and not isinstance(row, LeftOutError):
        raise row
    return row
