"""A text with two spans: from tags in the text, or from positions of characters or tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from bertie.base.errors import UserError, shorten
from bertie.examples.labels import gold_label, with_named_label
from bertie.examples.rows import parse_position
from bertie.examples.words import CHINESE

TAG = re.compile(r"<(/?)e([12])>", re.IGNORECASE)
_TAGGED = re.compile(
    r"(.*?)<e(?P<a>[12])>(.*?)</e(?P=a)>(.*?)<e(?P<b>[12])>(.*?)</e(?P=b)>(.*)", re.IGNORECASE | re.DOTALL
)
MARKER = re.compile(r"\[/?E[12](:[^\[\]]*)?\]")
"""The markers that the task puts into texts; no text may have one of its own."""
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Brackets in tokens of the Penn Treebank, as in TACRED."""
DIRECTED = re.compile(r"(.+)\((e1,e2|e2,e1)\)")
"""A relation with its direction."""
_LOOSE = re.compile(r"(.+?)\s*\(\s*(e[12])\s*,\s*(e[12])\s*\)", re.IGNORECASE)
SpanEnd = Literal["automatic", "last", "after"]
"""The meaning of the end of a span: its last character or token, or the one after it."""
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

    gold, named = gold_label, with_named_label


def relation_name(label: str) -> str:
    """Return a label with its direction as SemEval writes it: "Cause-Effect(e2,e1)" for "Cause-Effect (E2, E1)"."""
    match = _LOOSE.fullmatch(label)
    return f"{match[1]}({match[2].lower()},{match[3].lower()})" if match else label


def from_tags(tagged: str, place: str) -> tuple[str, SpanPlace, SpanPlace]:
    """Return a text with <e1>…</e1> and <e2>…</e2> without these tags, and its two spans.

    Blanks inside of tags belong to the surroundings of the span.

    Raises:
        UserError: A tag is missing or repeated, or spans are empty, nested or cross each other.
    """
    match = _TAGGED.fullmatch(tagged)
    if match is None or match["a"] == match["b"] or any(TAG.search(part) for part in match.groups()):
        needed = "the text needs <e1>…</e1> and <e2>…</e2>, each once and beside each other"
        raise UserError(f"{place}: {needed}: {shorten(tagged, 80)!r}")
    text, spans = "", dict[str, SpanPlace]()
    for side, before, inside in (match.group("a", 1, 3), match.group("b", 4, 6)):
        if not (span := inside.strip()):
            raise UserError(f"{place}: the span e{side} is empty")
        lead, _, trail = inside.partition(span)
        text = _joined(_joined(text, before), lead)
        spans[side] = (len(text), len(text) + len(span))
        text += span + trail
    return _joined(text, match[7]), spans["1"], spans["2"]


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
    numbers = [number for number in map(parse_position, ends) if number is not None]
    if len(numbers) < len(ends):
        problem = f"the positions of a span must be whole numbers from 0: {shorten(', '.join(map(str, ends)))}"
        raise UserError(f"{place}: {problem}")
    unit, size = "character" if isinstance(text, str) else "token", len(text)
    spans = [(start, stop + (end == "last")) for start, stop in (numbers[:2], numbers[2:])]
    for start, stop in spans:
        if not start < stop <= size:
            raise UserError(f"{place}: the span {start} to {stop}, exclusive, is empty or not in the {size} {unit}s")
    (a, b), (c, d) = spans
    if max(a, c) < min(b, d):
        raise UserError(f"{place}: the spans overlap: {unit}s {a} to {b} and {c} to {d}, exclusive")
    if isinstance(text, str):
        if end == "automatic" and (cut := cut_word(text, spans)):
            raise UserError(f"{place}: {cut}", "Correct it; --task.end after takes all spans as they are")
    else:
        starts = [0, *accumulate(len(token) + 1 for token in text)]
        text, spans = " ".join(text), [(starts[start], starts[stop] - 1) for start, stop in spans]
    for start, stop in spans:
        if not text[start:stop].strip():
            raise UserError(f"{place}: the span of the {unit}s {numbers} is blank")
    return text, spans[0], spans[1]


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
