"""Comment lines of CoNLL files: they begin with "#", before the first word of a sentence.

"# id = 7" and lines with more columns than the others are comments. "# s7" in a file of two columns could also be the word "#"
with the tag s7. It is this word if other words have the tag. It is a comment if there are several with tags that no word has,
each with another one. Otherwise `Comments` asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertie import console
from bertie.errors import UsageError, UserError, shorten

COMMENT = "#"
Keep = Literal["", "skip", "keep"]
ConllLine = tuple[int, list[str]]
"""The number of a line and its cells."""
_SEVERAL = 3  # lines that make sure that they are comments


@dataclass
class Comments:
    """Tells comments of a file from words."""

    path: Path
    """The file."""
    keep: Keep
    """Whether lines that could be both are skipped as comments or kept as words; empty: ask."""
    width: int
    """The number of columns."""
    tag: int | None
    """The column of the tag."""
    seen: set[str] = field(default_factory=set)
    """The tags so far."""
    usual: Keep = ""
    """What such lines were in the training examples."""
    first: int = 0
    """The number of the first comment that was skipped."""
    count: int = 0
    """How many were skipped."""

    def probe(self, lines: list[tuple[int, Any]]) -> None:
        """Decide by the first lines of the file, if they leave no doubt."""
        starts: list[str] = []
        begins = True
        for _, cells in lines:
            if isinstance(cells, UserError):
                continue
            is_comment = bool(cells) and cells[0] == COMMENT
            if self.tag is not None and len(cells) == self.width:
                if not is_comment:
                    self.seen.add(cells[self.tag])
                elif begins:
                    starts.append(cells[self.tag])
            begins = not cells or (begins and is_comment)
        unknown = [each for each in starts if each not in self.seen]
        if not self.keep and len(unknown) >= _SEVERAL and len(set(unknown)) == len(unknown):
            self.keep = "skip"

    def skips(self, number: int, cells: list[str]) -> bool:
        """Return whether a line that begins a sentence with "#" is a comment.

        Raises:
            UsageError: It could be one.
        """
        if self.keep == "keep" or not self._may_be(number, cells):
            return False
        self.first = self.first or number
        self.count += 1
        return True

    def _may_be(self, number: int, cells: list[str]) -> bool:
        alone = cells[0] == COMMENT or cells[0].startswith(f"{COMMENT} ")
        if len(cells) != self.width:
            return alone or len(cells) > self.width
        if not alone or "=" in cells[2:3]:
            return alone
        if self.keep or self.tag is None or cells[self.tag] in self.seen:
            return self.keep == "skip"
        if self.usual:
            return self.usual == "skip"
        line, tag = shorten(" ".join(cells)), shorten(cells[self.tag])
        problem = (
            f"{line!r} could be a comment, or the word {COMMENT!r} with the tag {tag!r}, which no word before it has"
        )
        raise UsageError(f"{self.path}:{number}: {problem}", "Choose with --task.comments skip or keep")

    def report(self) -> None:
        """Say how many comments were skipped."""
        if self.count:
            lines = console.plural(self.count, "comment line")
            console.info(f"{self.path}: skips {lines}, the first in line {self.first}")
