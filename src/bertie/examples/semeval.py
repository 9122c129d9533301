"""The files of SemEval-2010 task 8: a numbered sentence in quotes, its relation, and a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from bertie.base.errors import UserError, shorten
from bertie.examples.rows import Row, read_lines

NUMBERED = re.compile(r"(\d+)\t(.*)")
_COMMENT = re.compile(r"Comments?\s*:")


def is_numbered(path: Path) -> bool:
    """Whether a .txt file is SemEval's: its first line is a number, a tab and a sentence."""
    first = next((line for _, line in read_lines(path) if isinstance(line, UserError) or line.strip()), "")
    return isinstance(first, str) and NUMBERED.match(first.strip()) is not None


def numbered_rows(path: Path) -> Iterator[Row | UserError]:
    """Yield the examples of a file. Relations may be missing."""
    waiting: Row | None = None
    for number, line in read_lines(path):
        place = f"{path}:{number}"
        if isinstance(line, UserError):
            yield line
        elif match := NUMBERED.match(line.strip()):
            if waiting is not None:
                yield waiting
            sentence = match[2].strip()
            quoted = len(sentence) > 1 and sentence[0] == sentence[-1] == '"'
            waiting = Row({"text": sentence[1:-1] if quoted else sentence}, f"{path.name}:{number}", place)
        elif not (text := line.strip()) or _COMMENT.match(text):
            continue
        elif waiting is None or "relation" in waiting.values:
            if not text.startswith("Comment"):
                yield UserError(f"{place}: expected a numbered sentence, its relation, or a comment: {shorten(text)!r}")
        else:
            waiting.values["relation"] = text
    if waiting is not None:
        yield waiting
