"""Lists, tuples, sets and dicts in the cells of tables: JSON, what Python and pandas print, and what NumPy prints."""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any, TypeGuard

from bertie.errors import UserError, shorten
from bertie.untrusted import parse_json

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<word>\w+(?:\.\w+)?)
    |(?P<mark>\.\.\.|[][(){},:=]))""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False, "nan": math.nan}
_TUPLE_OR_SET = re.compile(r"""\s*(frozenset|set)?\(\s*(['"{[)]|-?\d+\s*,)""")
"""How a tuple begins, beside text in round brackets."""
_CLOSING = {"[": "]", "(": ")", "{": "}"}


def is_written(cell: Any) -> TypeGuard[str]:
    """Whether a cell looks like a list, a tuple, a set or a dict that a program wrote as text."""
    if not isinstance(cell, str):
        return False
    first, last = cell.lstrip()[:1], cell.rstrip()[-1:]
    return (last in ("]", "}") and first in ("[", "{")) or (last == ")" and _TUPLE_OR_SET.match(cell) is not None)


def parse_cell(cell: str, name: str, place: str) -> Any:
    """Return the list or the dict in a cell. A tuple and a set are lists.

    Args:
        cell: Its text: JSON, a Python literal, or NumPy's `['a' 'b']` and `array(['a'], dtype=object)`, also inside others.
        name: Its column, for messages.
        place: Its file and line, for messages.

    Raises:
        UserError: It is none of these, or NumPy left out a part of it.
    """
    try:
        value = parse_json(cell)
    except (ValueError, RecursionError):
        try:
            value = _Cell(cell).whole()
        except (ValueError, SyntaxError, RecursionError) as error:
            given = shorten(cell.strip())
            problem = f"{name!r} begins with a bracket and is no list that JSON, Python or NumPy writes: {given}"
            remedy = 'Write it as JSON, such as ["a", "b"]'
            raise UserError(f"{place}: {problem} ({error})", remedy) from error
    return value


class _Cell:
    """Reads the tokens of a cell from left to right."""

    def __init__(self, text: str):
        self.tokens: list[tuple[str, str]] = []
        at, end = 0, len(text.rstrip())
        while at < end:
            if not (found := _TOKEN.match(text, at)):
                raise ValueError(f"unexpected {text[at:].strip()[:10]!r}")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self.at = 0

    def whole(self) -> Any:
        value = self.value()
        if self.at < len(self.tokens):
            raise ValueError(f"unexpected {self.tokens[self.at][1][:10]!r}")
        return value

    def value(self) -> Any:
        kind, token = self.next()
        if kind == "string":
            return ast.literal_eval(token)
        if kind == "number":
            return json.loads(token) if re.fullmatch(r"-?(0|[1-9]\d*)", token) else float(token)
        if token in _WORDS:
            return _WORDS[token]
        if token == "array":
            return self.array()
        if token.startswith(("np.", "numpy.")) and self.skip("("):  # NumPy 2 prints np.str_('a')
            return self.closed()
        if token in ("set", "frozenset") and self.skip("("):
            return [] if self.skip(")") else self.closed()
        if token == "{":
            return self.entries()
        if token in ("[", "("):
            return self.items(_CLOSING[token])
        raise ValueError("NumPy left out a part of it" if token == "..." else f"unexpected {token[:10]!r}")

    def items(self, closing: str) -> list[Any]:
        """Read the items of a list, with commas between all of them, or as NumPy prints them, without any."""
        items, commas = list[Any](), list[bool]()
        while not self.skip(closing):
            items.append(self.value())
            commas.append(self.skip(","))
        if len(set(commas[:-1])) > 1 or (commas and commas[-1] and not all(commas)):
            raise ValueError("a comma is missing")
        if closing == ")" and commas and not commas[0]:
            raise ValueError("a tuple has a comma")
        return items

    def entries(self) -> dict[Any, Any] | list[Any]:
        start, entries = self.at, dict[Any, Any]()
        while not self.skip("}"):
            key = self.value()
            if not entries and self.tokens[self.at : self.at + 1] in ([("mark", ",")], [("mark", "}")]):
                self.at = start
                return self.items("}")  # of a set
            if not isinstance(key, str) or not self.skip(":"):
                raise ValueError("expected a key and a colon")
            if key in entries:
                raise ValueError(f"the key {key[:40]!r} stands twice")
            entries[key] = self.value()
            if not self.skip(",") and self.tokens[self.at : self.at + 1] != [("mark", "}")]:
                raise ValueError("a comma is missing")
        return entries

    def array(self) -> Any:
        """Read `(['a'], dtype=object)` behind "array"."""
        if not self.skip("("):
            raise ValueError("unexpected 'array'")
        value = self.value()
        if self.skip(","):
            [*words] = [self.next()[1] for _ in range(3)]
            if words[:2] != ["dtype", "="]:
                raise ValueError(f"unexpected {words[0][:10]!r}")
        if not self.skip(")"):
            raise ValueError("a bracket is open")
        return value

    def closed(self) -> Any:
        """Read `'a')` behind "np.str_("."""
        value = self.value()
        if not self.skip(")"):
            raise ValueError("a bracket is open")
        return value

    def skip(self, token: str) -> bool:
        """Step over a mark, if it is the next token."""
        found = self.tokens[self.at : self.at + 1] == [("mark", token)]
        self.at += found
        return found

    def next(self) -> tuple[str, str]:
        if self.at == len(self.tokens):
            raise ValueError("a bracket is open")
        self.at += 1
        return self.tokens[self.at - 1]
