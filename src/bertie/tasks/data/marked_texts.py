"""A text with two spans: from tags in the text, or from positions of characters or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from bertie.errors import UserError, shorten
from bertie.tasks.data.rows import parse_position
from bertie.tasks.data.words import CHINESE

TAG = re.compile(r"<(/?)e([12])>", re.IGNORECASE)
MARKER = re.compile(r"\[/?E[12](:[^\[\]]*)?\]")
"""What the task puts into texts, which therefore no text may have."""
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Brackets in tokens of the Penn Treebank, as in TACRED."""
DIRECTED = re.compile(r"(.+)\((e1,e2|e2,e1)\)")
"""A relation with its direction."""
_LOOSE = re.compile(r"(.+?)\s*\(\s*(e[12])\s*,\s*(e[12])\s*\)", re.IGNORECASE)
SIDES = ("first", "second")
SpanEnd = Literal["automatic", "last", "after"]
"""What the end of a span names: its last character or token, or the one after it."""
SpanPlace = tuple[int, int]
"""The characters of a span: the first, and the one after the last."""


class RelationColumns(NamedTuple):
    """The columns of a row."""

    text: str
    spans: tuple[str, ...]
    """Start and end of the first span, then of the second one. Empty: the text has tags."""
    types: tuple[str, ...]
    """Types of both spans. Empty: they are unknown."""
    label: str | None

    @property
    def uses(self) -> dict[str, str]:
        """The names by use."""
        named = {"text": self.text, "spans": ", ".join(self.spans), "types": ", ".join(self.types), "label": self.label}
        return {use: name for use, name in named.items() if name}


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

    def named(self, names: dict[str, str]) -> RelationExample:
        return replace(self, label=names.get(self.label or "", self.label))


def relation_name(label: str) -> str:
    """Return a label with its direction as SemEval writes it: "Cause-Effect(e2,e1)" for "Cause-Effect (E2, E1)"."""
    match = _LOOSE.fullmatch(label)
    return f"{match[1]}({match[2].lower()},{match[3].lower()})" if match else label


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
        UserError: A position is no number or beyond the text, or spans are empty, blank or overlap; or `end` is automatic, and
            a span of characters cuts a word.
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
        if end == "automatic" and (cut := cut_word(text, places)):
            raise UserError(f"{place}: {cut}", "Correct it; --task.end after takes all spans as they are")
        joined, spans = text, places
    else:
        starts = [0]
        for token in text:
            starts.append(starts[-1] + len(token) + 1)
        joined, spans = " ".join(text), [(starts[a], starts[b] - 1), (starts[c], starts[d] - 1)]
    for side, (start, stop) in zip(SIDES, spans, strict=True):
        if not joined[start:stop].strip():
            raise UserError(f"{place}: the {side} span is blank: {unit}s {start} to {stop}, exclusive")
    return joined, spans[0], spans[1]


def cut_word(text: str, places: list[SpanPlace]) -> str:
    """Say which span of characters begins or ends inside of a word; "" if none does, or the text has no blanks."""
    for start, stop in places if " " in text else ():
        for at in (start, stop):
            if _inside(text, at):
                first = next((i for i in range(at, 0, -1) if not _inside(text, i)), 0)
                last = next((i for i in range(at, len(text)) if not _inside(text, i)), len(text))
                return f"the span {text[start:stop]!r} cuts the word {shorten(text[first:last])!r}"
    return ""


def _inside(text: str, at: int) -> bool:
    """Whether a word goes on at a character. Each Chinese character is a word."""
    return 0 < at < len(text) and all(each.isalnum() and not CHINESE.match(each) for each in text[at - 1 : at + 1])


def _position(value: Any, place: str) -> int:
    if (number := parse_position(value)) is None:
        raise UserError(f"{place}: a position of a span is {shorten(str(value))!r}, and must be a whole number from 0")
    return number
