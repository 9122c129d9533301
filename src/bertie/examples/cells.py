"""Lists and dicts in the cells of tables: JSON, and what Python and pandas print."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from itertools import pairwise
from typing import Any, TypeGuard

from bertie.base.errors import UserError, shorten
from bertie.base.untrusted import RepeatedKeyError, parse_json

_TUPLE_OR_SET = re.compile(r"""\s*(frozenset|set)?\(\s*(['"{[)]|-?\d+\s*,)""")
"""How a tuple begins, beside text in round brackets."""
_NEIGHBORS = re.compile(r"""['"]\s+[rb]?['"]|['"]{2}""")
"""Two strings without a comma between them, or an empty one."""


def is_written(cell: Any) -> TypeGuard[str]:
    """Whether a cell looks like a list, a tuple, a set or a dict that a program wrote as text."""
    if not isinstance(cell, str):
        return False
    last = cell.rstrip()[-1:]
    return (last in ("]", "}") and cell.lstrip()[0] in "[{") or (last == ")" and _TUPLE_OR_SET.match(cell) is not None)


def parse_cell(cell: str, name: str, place: str) -> Any:
    """Return the list or the dict in a cell, which is JSON or a Python literal. A tuple and a set are lists.

    Args:
        cell: Its text.
        name: Its column, for messages.
        place: Its file and line, for messages.

    Raises:
        UserError: It is neither, such as what NumPy prints: `['a' 'b']`, `array(['a'])`.
    """
    try:
        return parse_json(cell)
    except RepeatedKeyError as error:
        raise UserError(f"{place}: {name!r} has {error}") from error
    except (ValueError, RecursionError):
        pass
    try:
        if _NEIGHBORS.search(cell):
            _require_commas(cell)
        value = _lists(ast.literal_eval(cell.strip()))
        if not isinstance(value, list | dict):
            raise TypeError("a tuple has a comma")
        return value
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        problem = f"{name!r} begins with a bracket and is neither JSON nor a Python list: {shorten(cell.strip())}"
        raise UserError(
            f"{place}: {problem}", 'Write it as JSON, such as ["a", "b"], which NumPy does not do'
        ) from error


def _require_commas(cell: str) -> None:
    """Raise a ValueError if strings follow each other without a comma: Python would join them."""
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(cell.strip()).readline)]
    if (tokenize.STRING, tokenize.STRING) in pairwise(kind for kind in kinds if kind != tokenize.NL):
        raise ValueError("strings without a comma between them")


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_lists(item) for item in (sorted(value, key=repr) if isinstance(value, set) else value)]
    if value is ...:
        raise ValueError("elements are left out")
    return value
