"""A text with two spans: from tags in the text, or from positions of characters or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import parse_index, shorten

TAG = re.compile(r"<(/?)e([12])>", re.IGNORECASE)
MARKER = re.compile(r"\[/?E[12](:[^\[\]]*)?\]")
"""What the task puts into texts, which therefore no text may have."""
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Brackets in tokens of the Penn Treebank, as in TACRED."""
SIDES = ("first", "second")
SpanEnd = Literal["automatic", "last", "after"]
"""What the end of a span names: its last character or token, or the one after it."""
SpanPlace = tuple[int, int]
"""The characters of a span: the first, and the one after the last."""


@dataclass(frozen=True)
class RelationExample:
    """A text with two spans, and the relation between them.

    Attributes:
        text: The text, without tags.
        first: The characters of the first span: start, and end (exclusive). It may stand after the second one.
        second: Those of the second span.
        first_type: Type of the first span, such as "PERSON"; None if it is unknown.
        second_type: Type of the second span.
        label: The relation; None if it is unknown.
        source: The file and line ("train.tsv:12"), for messages.
    """

    text: str
    first: SpanPlace
    second: SpanPlace
    first_type: str | None
    second_type: str | None
    label: str | None
    source: str

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.text,)

    @property
    def gold(self) -> tuple[str, ...] | None:
        return None if self.label is None else (self.label,)


def from_tags(tagged: str, place: str) -> tuple[str, SpanPlace, SpanPlace]:
    """Return a text with <e1>…</e1> and <e2>…</e2> without these tags, and its two spans.

    Blanks inside of tags belong to the surroundings of the span.

    Raises:
        UserError: A tag is missing or there twice, or spans are empty, nested or cross each other.
    """
    found = [(match[1], match[2], match.start(), match.end()) for match in TAG.finditer(tagged)]
    names = [f"<{slash}e{number}>" for slash, number, *_ in found]
    for name in ("<e1>", "</e1>", "<e2>", "</e2>"):
        if (count := names.count(name)) != 1:
            how = "no" if count == 0 else f"{count} times"
            raise UserError(f"{place}: the text has {how} {name}: {shorten(tagged, 80)!r}")
    sides = [number for _, number, *_ in found]
    if [slash for slash, *_ in found] != ["", "/", "", "/"] or sides[0] != sides[1]:
        problem = "its spans cross each other, are nested, or a tag ends one that has not begun"
        raise UserError(f"{place}: the tags stand in the order {' '.join(names)}: {problem}")
    text, spans, start = "", {}, 0
    for open_tag, close_tag in (found[:2], found[2:]):
        inside = tagged[open_tag[3] : close_tag[2]]
        if not (span := inside.strip()):
            raise UserError(f"{place}: the span e{open_tag[1]} is empty")
        lead, trail = inside[: len(inside) - len(inside.lstrip())], inside[len(inside.rstrip()) :]
        text = _joined(_joined(text, tagged[start : open_tag[2]]), lead)
        spans[open_tag[1]] = (len(text), len(text) + len(span))
        text, start = text + span + trail, close_tag[3]
    return _joined(text, tagged[start:]), spans["1"], spans["2"]


def _joined(text: str, more: str) -> str:
    """Join two parts of a text. Blanks at the place of a tag are one blank."""
    return text + (more.lstrip() if text[-1:].isspace() else more)


def from_positions(
    text: str | list[str], ends: list[Any], end: SpanEnd, place: str
) -> tuple[str, SpanPlace, SpanPlace]:
    """Return a text and its two spans, from positions of characters in a text or of tokens in a list.

    Args:
        text: The text, or its tokens.
        ends: Start and end of the first span, then of the second one.
        end: What the ends name.
        place: The file and line, for messages.

    Raises:
        UserError: A position is no number or beyond the text, or spans are empty or overlap.
        UsageError: `end` is automatic, and the ends of characters look like those of the last ones.
    """
    numbers = [_position(value, place) for value in ends]
    unit = "character" if isinstance(text, str) else "token"
    places = [(start, stop + (end == "last")) for start, stop in (numbers[:2], numbers[2:])]
    for side, (start, stop) in zip(SIDES, places, strict=True):
        if stop > len(text):
            raise UserError(f"{place}: the {side} span ends after the text, which has {len(text)} {unit}s")
        if start >= stop:
            raise UserError(f"{place}: the {side} span is empty: {unit} {start} to {stop}, exclusive")
    (a, b), (c, d) = places
    if max(a, c) < min(b, d):
        raise UserError(f"{place}: the spans overlap: {unit}s {a} to {b} and {c} to {d}, exclusive")
    if isinstance(text, str):
        if end == "automatic":
            _require_whole_words(text, places, place)
        return text, (a, b), (c, d)
    starts = [0]
    for token in text:
        starts.append(starts[-1] + len(token) + 1)
    return " ".join(text), (starts[a], starts[b] - 1), (starts[c], starts[d] - 1)


def _position(value: Any, place: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    number = parse_index(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if number is None:
        raise UserError(f"{place}: a position of a span is {shorten(str(value))!r}, and must be a number from 0")
    return number


def _require_whole_words(text: str, places: list[SpanPlace], place: str) -> None:
    """Raise UsageError if a span lacks only the last letter of a word: its end seems to name the last character."""
    for start, stop in places:
        cut = text[stop - 1 : stop + 1]
        if " " in text and len(cut) == 2 and cut.isalnum() and not text[stop + 1 : stop + 2].isalnum():
            raise UsageError(
                f"{place}: a span is {text[start:stop]!r}, and the word goes on with {text[stop]!r}",
                "Say what the end of a span names: --task.end last (its last character) or --task.end after",
            )
