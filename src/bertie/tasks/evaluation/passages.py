"""One example of an evaluation for people: its texts with marks, what is right, what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.report import Mark, TextSpan
from bertie.tasks.data.texts import Example

BESIDE = 120  # characters that are left on each side of what is marked
LONE = 400  # characters that are left of a text without marks
SOLID = 60  # a marked text keeps its ends where it is longer than five times this


@dataclass(frozen=True)
class Passage:
    """facts: what there is to say of it, by name; texts: its paragraphs, each of parts with marks."""

    facts: dict[str, str]
    texts: list[list[TextSpan]]


def shortened(parts: list[TextSpan]) -> list[TextSpan]:
    """Without most of what is not marked, and without the middle of long marks."""
    if len(parts) == 1 and not parts[0].mark:
        [(text, *_)] = parts
        return [TextSpan(text if len(text) <= LONE else f"{text[:LONE].rstrip()} …")]
    last = len(parts) - 1
    return [_cut(part, before=i > 0, after=i < last) for i, part in enumerate(parts)]


def _cut(part: TextSpan, before: bool, after: bool) -> TextSpan:
    """before, after: whether there is a mark on this side, which its neighbourhood is kept for."""
    text, room = part.text, BESIDE
    if part.mark:
        before, after, room = True, True, 2 * SOLID
    if len(text) <= (before + after) * room + 20:
        return part
    start = _to_word(text[:room]) + " " if before else ""
    end = " " + _to_word(text[: -room - 1 : -1])[::-1] if after else ""
    return part._replace(text=f"{start}…{end}")


def _to_word(text: str) -> str:
    """Without the word that was cut at its end, where that is a short one."""
    whole, blank, cut = text.rpartition(" ")
    return (whole if blank and len(cut) < 20 else text).rstrip()


def mark(gold: bool, predicted: bool) -> Mark:
    """Of what is right, was predicted, or both."""
    if gold:
        return "right" if predicted else "gold"
    return "wrong" if predicted else ""


def texts_of(example: Example) -> list[list[TextSpan]]:
    """The text, or both of a pair, shortened."""
    return [shortened([TextSpan(text)]) for text in (example.text, example.text_pair) if text is not None]
