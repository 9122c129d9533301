"""OpenNRE's rows: "token" or "text", "relation", and "h" and "t", objects with the name, the type and the pos of a span."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from bertie.base.errors import UserError
from bertie.examples.rows import Row

_SIDES = ("h", "t")


def flat(row: Row) -> Row:
    """Return a row with what its objects say in columns: h_start, h_end, h_name and h_type, and t_…; other rows as they are.

    Raises:
        UserError: A pos is no list of start and end.
    """
    if not all(isinstance(row.values.get(side), dict) and "pos" in row.values[side] for side in _SIDES):
        return row
    values = {name: value for name, value in row.values.items() if name not in _SIDES}
    for side in _SIDES:
        span = row.values[side]
        if not isinstance(span["pos"], list | tuple) or len(span["pos"]) != 2:
            raise UserError(f"{row.place}: the pos of {side!r} is {str(span['pos'])[:40]}: expected [start, end]")
        values |= {f"{side}_{key}": span[key] for key in ("name", "type") if key in span}
        values |= dict(zip((f"{side}_start", f"{side}_end"), span["pos"], strict=True))
    return row._replace(values=values)


def end_by_name(values: Mapping[str, Any], tokens: list[str], numbers: list[int]) -> Literal["last", "after"] | None:
    """Return what the ends of spans of tokens name, if only one reading gives the names of both spans.

    Args:
        values: The row, as `flat` returns it.
        tokens: The tokens.
        numbers: Start and end of the first span, then of the second one.
    """
    names = [values.get(f"{side}_name") for side in _SIDES]
    if not all(isinstance(name, str) for name in names):
        return None
    wanted = ["".join(str(name).split()).casefold() for name in names]

    def fits(more: int) -> bool:
        spans = (tokens[numbers[at] : numbers[at + 1] + more] for at in (0, 2))
        return [("".join(span)).casefold() for span in spans] == wanted

    return "after" if fits(0) else "last" if fits(1) else None
