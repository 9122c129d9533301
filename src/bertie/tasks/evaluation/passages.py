"""Display of one example on the page of an evaluation: its shortened texts, with gold and predicted parts marked."""

from __future__ import annotations

from dataclasses import dataclass

from bertie.base.report import Mark, TextSpan
from bertie.examples.label_sets import LabelSetExample
from bertie.examples.texts import Example

CONTEXT = 120  # characters that are kept on each side of a mark
UNMARKED = 400  # characters that are kept of a text without marks
MARKED_END = 120  # characters that are kept at each end of a long marked part


@dataclass(frozen=True)
class Passage:
    """One example for display. facts: a line of facts by name; texts: paragraphs, each a list of parts with marks."""

    facts: dict[str, str]
    texts: list[list[TextSpan]]


def shortened(parts: list[TextSpan]) -> list[TextSpan]:
    """Shorten a paragraph: keep the surroundings of marks, and the ends of long marked parts."""
    if len(parts) == 1 and not parts[0].mark:
        [(text, *_)] = parts
        return [TextSpan(text if len(text) <= UNMARKED else f"{text[:UNMARKED].rstrip()} …")]
    last = len(parts) - 1
    return [_shorten_part(part, before=i > 0, after=i < last) for i, part in enumerate(parts)]


def _shorten_part(part: TextSpan, before: bool, after: bool) -> TextSpan:
    """Replace the middle of a long part by "…". before, after: whether a mark adjoins this side, so that it is kept."""
    text, size = part.text, CONTEXT
    if part.mark:
        before, after, size = True, True, MARKED_END
    if len(text) <= (before + after) * size + 20:
        return part
    start = _drop_partial_word(text[:size]) + " " if before else ""
    end = " " + _drop_partial_word(text[: -size - 1 : -1])[::-1] if after else ""
    return part._replace(text=f"{start}…{end}")


def _drop_partial_word(text: str) -> str:
    """Remove the word at the end, which may be incomplete, unless it is long or the only one."""
    words, blank, partial = text.rpartition(" ")
    return (words if blank and len(partial) < 20 else text).rstrip()


def marked(text: str, mark: Mark, spans: list[tuple[int, int, str]]) -> list[TextSpan]:
    """Return a text with marked spans, from left to right: start, end (exclusive) and note of each."""
    parts, at = [], 0
    for start, end, note in spans:
        parts += [TextSpan(text[at:start]), TextSpan(text[start:end], mark, note)]
        at = end
    return [*parts, TextSpan(text[at:])]


def mark(gold: bool, predicted: bool) -> Mark:
    """Return the mark of a part that is gold, predicted, both or neither."""
    if gold:
        return "right" if predicted else "gold"
    return "wrong" if predicted else ""


def texts_of(example: Example | LabelSetExample) -> list[list[TextSpan]]:
    """Return the text of an example, or both texts of a pair, shortened."""
    return [shortened([TextSpan(text)]) for text in (example.text, example.text_pair) if text is not None]
