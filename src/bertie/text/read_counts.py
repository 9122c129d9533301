"""Counts of skipped and blank records, and of encodings. Counts of parts of the work add up to those of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bertie import console
from bertie.errors import UserError
from bertie.files.lines import BadRecord


@dataclass
class ReadCounts:
    """Counts of what the readers skipped.

    Attributes:
        strict: Whether the first record that cannot be used is an error.
        skipped: By reason: the number of records, and the message about the first one.
        encodings: By name: the number of files, and the first file whose encoding was guessed (or None).
        last: The message about the last skipped record.
        blank: The number of records without text.
    """

    strict: bool = False
    skipped: dict[str, list[Any]] = field(default_factory=dict)
    encodings: dict[str, list[Any]] = field(default_factory=dict)
    last: str = ""
    blank: int = 0

    @property
    def total_skipped(self) -> int:
        return sum(count for count, _ in self.skipped.values())

    def skip(self, record: BadRecord, place: str) -> None:
        """Count a record that cannot be used. Raises UserError if `strict`.

        Args:
            record: The problem. Each of its lines counts as one record.
            place: The file and the line.
        """
        self.last = f"{place}: {record.detail}"
        if self.strict:
            raise UserError(self.last)
        self.skipped.setdefault(record.reason, [0, self.last])[0] += record.lines

    def encoding(self, name: str, file: str, guessed: bool) -> None:
        """Count the encoding of a file. Raises UserError if it was guessed and `strict`."""
        if guessed and self.strict:
            raise UserError(f"{file} is not UTF-8 and seems to be {name}: name its encoding with --encoding")
        entry = self.encodings.setdefault(name, [0, None])
        entry[0] += 1
        if guessed and entry[1] is None:
            entry[1] = file

    def add(self, other: dict[str, Any]) -> None:
        """Add counts that `as_json` returned in another process."""
        self.blank += other["blank"]
        for entries, others in ((self.skipped, other["skipped"]), (self.encodings, other["encodings"])):
            for name, (count, first) in others.items():
                entry = entries.setdefault(name, [0, first])
                entry[0] += count
                entry[1] = entry[1] or first

    def as_json(self) -> dict[str, Any]:
        return {"skipped": self.skipped, "encodings": self.encodings, "blank": self.blank}

    def lines(self, places: bool = True) -> list[str]:
        """Return one sentence for each kind of skipped record, guessed encoding and blank records.

        Args:
            places: Name files and lines, as only makes sense on this machine.
        """
        sentences = [
            f"skipped {console.plural(count, 'record')}: {reason}" + f" (the first: {first})" * places
            for reason, (count, first) in self.skipped.items()
        ]
        for name, (count, first) in self.encodings.items():
            if first:
                others = f" and others, {count:,} files in total" * (count > 1)
                files = f"{first}{others}" if places else f"{count:,} files"
                sentences.append(f"encoding guessed as {name} (set it with --encoding): {files}")
        if self.blank:
            sentences.append(f"{self.blank:,} records have no text")
        return sentences
