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
from bertie.errors import UsageError, UserError
from bertie.tasks.data.rows import shorten
from bertie.tasks.data.tagged import TaggedSentence

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
    skipped: list[int] = field(default_factory=list)
    """The number of the first comment, then only their count grows."""
    count: int = 0
    """How many comments were skipped."""

    @classmethod
    def of(cls, path: Path, keep: Keep, width: int, tag: int | None, probed: list[tuple[int, Any]]) -> Comments:
        """Return what the first lines of a file say."""
        found = cls(path, keep, width, tag)
        starts, before = [], []
        for _, cells in probed:
            if isinstance(cells, UserError):
                continue
            if cells and tag is not None and len(cells) == width:
                if cells[0] != COMMENT:
                    found.seen.add(cells[tag])
                elif not before:
                    starts.append(cells[tag])
            before = cells if not cells or cells[0] != COMMENT else before
        unknown = [each for each in starts if each not in found.seen]
        if not keep and len(unknown) >= _SEVERAL and len(set(unknown)) == len(unknown):
            found.keep = "skip"
        return found

    def skips(self, number: int, cells: list[str]) -> bool:
        """Return whether a line that begins a sentence with "#" is a comment.

        Raises:
            UsageError: It could be one.
        """
        if self.keep == "keep" or not self._may_be(number, cells):
            return False
        self.skipped = self.skipped or [number]
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
        line, tag = shorten(" ".join(cells)), shorten(cells[self.tag])
        problem = (
            f"{line!r} could be a comment, or the word {COMMENT!r} with the tag {tag!r}, which no word before it has"
        )
        raise UsageError(f"{self.path}:{number}: {problem}", "Choose with --task.comments skip or keep")

    def see(self, sentence: TaggedSentence | UserError) -> None:
        """Remember the tags of a sentence."""
        if isinstance(sentence, TaggedSentence) and sentence.tags:
            self.seen.update(sentence.tags)

    def report(self) -> None:
        """Say how many comments were skipped."""
        if self.count:
            lines = console.plural(self.count, "comment line")
            console.info(f"{self.path}: skips {lines}, the first in line {self.skipped[0]}")
