"""What was read and what was not: counts that add up over any division of the work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertie import console
from bertie.errors import UserError


@dataclass
class ReadCounts:
    """skipped: reason → how many records, and where the first was. encodings: name → how many files, the first guessed one."""

    strict: bool = False
    skipped: dict[str, list[Any]] = field(default_factory=dict)
    encodings: dict[str, list[Any]] = field(default_factory=dict)
    last: str = ""
    blank: int = 0  # records without text

    @property
    def total_skipped(self) -> int:
        return sum(count for count, _ in self.skipped.values())

    def skip(self, reason: str, where: str, detail: str = "", count: int = 1) -> None:
        """Errors: UserError where nothing may be skipped."""
        self.last = f"{where}: {detail or reason}"
        if self.strict:
            raise UserError(self.last)
        self.skipped.setdefault(reason, [0, self.last])[0] += count

    def encoding(self, name: str, file: str, guessed: bool) -> None:
        if guessed and self.strict:
            raise UserError(f"{file} is not UTF-8 and seems to be {name}: say what it is with --encoding")
        counted = self.encodings.setdefault(name, [0, None])
        counted[0] += 1
        if guessed and counted[1] is None:
            counted[1] = file

    def add(self, other: dict[str, Any]) -> None:
        """Take what `told` gave elsewhere."""
        self.blank += other["blank"]
        for mine, theirs in ((self.skipped, other["skipped"]), (self.encodings, other["encodings"])):
            for name, (count, first) in theirs.items():
                counted = mine.setdefault(name, [0, first])
                counted[0] += count
                counted[1] = counted[1] or first

    def as_json(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "encodings": self.encodings, "blank": self.blank}

    def lines(self, places: bool = True) -> list[str]:
        """For people: a line for each thing that they should know. places: name the files, as this machine does."""
        found = [
            f"skipped {console.plural(count, 'record')}: {reason}" + f" (the first: {first})" * places
            for reason, (count, first) in self.skipped.items()
        ]
        for name, (count, first) in self.encodings.items():
            if first:
                which = f"{first}{f' and others, of {count:,} files' * (count > 1)}" if places else f"{count:,} files"
                found.append(f"read as {name}, which is a guess (--encoding says better): {which}")
        if self.blank:
            found.append(f"{self.blank:,} records hold no text")
        return found
