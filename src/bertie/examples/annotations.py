"""Annotated spans of texts as tags of words: rows of doccano, Prodigy and others, Label Studio's tasks, brat's files.

A span is the characters from its start to its end (exclusive), counted as Unicode's code points. `words` finds the words of a
text; Prodigy's rows bring their own. A span covers whole words. Spaces, and characters without width,
at its ends do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Many
from itertools import pairwise
from typing import Any, NamedTuple

from bertie.base.errors import UserError, shorten
from bertie.examples.rows import parse_label, parse_position, require_string
from bertie.examples.tag_form import ENTITY, TagForm
from bertie.examples.tagged import TaggedSentence
from bertie.examples.words import BY_CHARACTERS, TextRange

_STARTS = ("start", "start_offset")
_ENDS = ("end", "end_offset")
_LABELS = ("label", "entity_group", "type")
# the start of an entity, and the next word
_TAG_PAIR = re.compile(r"B([-_:/].+) [ILEM]\1|(.+[-_:/])B \2[ILEM]", re.IGNORECASE)


class LabeledSpan(NamedTuple):
    """A span of a text with its label.

    Attributes:
        start: Its first character.
        end: The character after its last.
        label: The kind of entity.
        surface: Its text, if the annotation repeats it; else empty.
        where: The file and line, for messages.
    """

    start: int
    end: int
    label: str
    surface: str
    where: str

    def __str__(self) -> str:
        shown = f" ({shorten(self.surface)!r})" if self.surface else ""
        return f"{self.label} {self.start}–{self.end}{shown}"


def parse_span(value: Any, where: str) -> LabeledSpan:
    """Return a span: [start, end, label], or an object with start, end and label (also start_offset, end_offset, and labels,
    entity_group or type).

    Raises:
        UserError: It is something else.
    """
    surface = ""
    if isinstance(value, list | tuple) and len(value) == 3:
        start, end, label = value
    elif isinstance(value, dict):
        start, end = (next((value[key] for key in keys if key in value), None) for keys in (_STARTS, _ENDS))
        labels = value.get("labels", [next((value[name] for name in _LABELS if value.get(name) is not None), None)])
        if not isinstance(labels, list) or len(labels) != 1:
            raise UserError(
                f"{where}: a span has the labels {str(labels)[:40]}, but a word has one tag: give one label"
            )
        [label], surface = labels, value.get("text", "")
    else:
        raise UserError(f"{where}: a span is [start, end, label] or an object with these keys, found {str(value)[:60]}")
    first, last = parse_position(start), parse_position(end)
    if first is None or last is None:
        problem = f"a span starts at {start!r} and ends at {end!r}: expected character offsets, from 0"
        raise UserError(f"{where}: {problem}")
    name = parse_label(label, "label", where)
    if name is None:
        raise UserError(f"{where}: the span {first}–{last} has no label")
    return LabeledSpan(first, last, name, require_string(surface, "text", where), where)


def from_spans(
    text: str, places: Many[TextRange], spans: list[LabeledSpan], form: TagForm, source: str
) -> TaggedSentence:
    """Return the words of a text with the tags of its spans.

    Args:
        text: The text.
        places: The places of its words.
        spans: The annotated spans, in any order.
        form: How tags mark entities.
        source: The file and line, for messages.

    Raises:
        UserError: A span is not in the text, has another text than annotated, overlaps with another one, or cuts a word.
    """
    places = tuple(places)
    placed = sorted({span[:3]: span for span in _placed(text, spans)}.values())  # some tools repeat a span
    for span in placed:
        if span.label in ("O", form.outside):
            raise UserError(
                f"{span.where}: the span {span}: {span.label} is the tag of words outside entities, so it cannot label a span"
            )
    for before, after in pairwise(placed):
        if after.start < before.end:
            how = "is nested in" if after.end <= before.end else "overlaps with"
            raise UserError(f"{after.where}: the span {after} {how} {before}: a word has one tag, so keep one of them")
        if _TAG_PAIR.fullmatch(f"{before.label} {after.label}") and not text[before.end : after.start].strip():
            problem = f"the spans {before} and {after} are tags of words, but a span is a whole entity"
            raise UserError(f"{after.where}: {problem}", "Join such spans, or give tokens and tags")
    tags = [form.outside] * len(places)
    word, kind = 0, ""
    for span in placed:
        while word < len(places) and places[word][1] <= span.start:
            word += 1
        first = word
        while word < len(places) and places[word][0] < span.end:
            word += 1
        if first == word:
            raise UserError(f"{span.where}: the span {span} covers no word")
        for start, end in (places[first], places[word - 1]):
            if start < span.start or end > span.end:
                problem = f"the span {span} cuts the word {shorten(text[start:end])!r} ({start}–{end})"
                raise UserError(f"{span.where}: {problem}", f"Move its ends to those of words, or set {BY_CHARACTERS}")
        follows = first > 0 and tags[first - 1] != form.outside and kind == span.label
        tags[first:word], kind = _tags_of(span, word - first, form, follows), span.label
    return TaggedSentence(tuple(text[a:b] for a, b in places), tuple(tags), source, text, places)


def _placed(text: str, spans: list[LabeledSpan]) -> list[LabeledSpan]:
    """Return the spans in characters. Some tools count UTF-16 code units: if only these give the annotated texts, too."""
    if any(span.surface for span in spans) and any(ord(character) > 0xFFFF for character in text):
        starts, unit = {}, 0
        for number, character in enumerate(text):
            starts[unit] = number
            unit += 1 + (ord(character) > 0xFFFF)
        starts[unit] = len(text)
        moved = [span._replace(start=starts.get(span.start, -1), end=starts.get(span.end, -1)) for span in spans]
        if not all(_fits(text, span) for span in spans) and all(_fits(text, span) for span in moved):
            spans = moved
    for span in spans:
        if not 0 <= span.start < span.end <= len(text):
            raise UserError(f"{span.where}: the span {span} is not in the text, which has {len(text):,} characters")
        if not _fits(text, span):
            covered = shorten(text[span.start : span.end])
            raise UserError(f"{span.where}: the span {span} has a different text in the document: {covered!r}")
    return spans


def _fits(text: str, span: LabeledSpan) -> bool:
    """Whether a span has the annotated text. Tools write line breaks as spaces or in other ways."""
    covered = text[span.start : span.end] if 0 <= span.start <= span.end else ""
    surfaces = ("".join(surface.split()) for surface in (span.surface, span.surface.replace("\\n", "\n")))
    return not span.surface or "".join(covered.split()) in surfaces


def _tags_of(span: LabeledSpan, size: int, form: TagForm, follows: bool) -> list[str]:
    """Return the tags of a span's words. follows: whether the word before is in a span with the same label."""
    if not form.separator and not form.whole and span.label != ENTITY:
        raise UserError(f"{span.where}: the span {span} has a label, but the model's tags have no types of entities")
    if form.scheme == "io" and follows:
        raise UserError(
            f"{span.where}: the span {span} directly follows one with the same label: the scheme io would join them"
        )
    places = ["B", *"I" * (size - 1)]
    if form.strict:
        places = ["S"] if size == 1 else ["B", *"I" * (size - 2), "E"]
    elif form.scheme == "io" or (form.scheme == "iob1" and not follows):
        places = ["I"] * size
    return [form.tag(place, span.label) for place in places]
