"""The first stage of `prepare`: files to blocks of documents, so that what follows can be shared out evenly.

blocks/00000-00000.txt              documents, in UTF-8, parted by NUL: of the first group of files, its first block
blocks/00000-00000.documents.npy    what tells equal documents, see `duplicates`
blocks/00000.json                   the group is done: its blocks, and counts
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertie import storage
from bertie.errors import UsageError
from bertie.files.sources import Source
from bertie.text import duplicates
from bertie.text.duplicates import BLOCKS
from bertie.text.read_counts import ReadCounts
from bertie.text.readers import ReaderOptions, read_sources


@dataclass(frozen=True)
class Filters:
    """Which documents to leave out, each kind counted."""

    min_characters: int = 0
    """Leave shorter documents out."""
    max_characters: int = 0
    """Leave longer documents out; 0: none."""
    duplicates: Literal["keep", "documents", "paragraphs"] = "documents"
    """Leave out documents that are equal to an earlier one; or also paragraphs of 100 characters and more."""

    def __post_init__(self) -> None:
        if self.min_characters < 0 or self.max_characters < 0:
            raise UsageError("--min-characters and --max-characters are numbers of characters: give 0 or more")
        if 0 < self.max_characters < self.min_characters:
            raise UsageError(
                f"--max-characters {self.max_characters} is less than --min-characters {self.min_characters}"
            )


@dataclass(frozen=True)
class FileGroup:
    """Files to read, by one worker."""

    work: Path
    number: int
    files: tuple[Source, ...]
    reading: ReaderOptions
    filters: Filters
    block_bytes: int


def run_once(path: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives, or gave when it was done before, which the file `path` then says."""
    if path.exists():
        return storage.read_json(path)
    result = work()
    path.parent.mkdir(exist_ok=True)
    storage.write_atomic(path, json.dumps(result))
    return result


def read_group(group: FileGroup) -> dict[str, Any]:
    """{"blocks": names, "documents", "bytes", "filtered", "skipped", "encodings"} of a group of files."""
    folder = group.work / BLOCKS
    return run_once(folder / f"{group.number:05d}.json", lambda: _read_group(group, folder))


def _read_group(group: FileGroup, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    tally = ReadCounts()
    told: dict[str, Any] = {"blocks": [], "documents": 0, "bytes": 0, "filtered": {}}
    for block in _blocks(group, tally, told["filtered"]):
        name = f"{group.number:05d}-{len(told['blocks']):05d}"
        storage.write_atomic(folder / f"{name}.txt", b"\x00".join(block))
        duplicates.write_hashes(folder / name, block, group.filters.duplicates)
        told["blocks"].append(name)
        told["documents"] += len(block)
        told["bytes"] += sum(map(len, block))
    return {**told, **tally.as_json()}


def _blocks(group: FileGroup, tally: ReadCounts, filtered: dict[str, int]) -> Iterator[list[bytes]]:
    """Documents, as UTF-8, of `block_bytes` or little more."""
    block: list[bytes] = []
    size = 0
    least, most = group.filters.min_characters, group.filters.max_characters
    for document in read_sources(list(group.files), group.reading, tally):
        if len(document.text) < least or (most and len(document.text) > most):
            reason = f"under {least:,} characters" if len(document.text) < least else f"over {most:,} characters"
            filtered[reason] = filtered.get(reason, 0) + 1
            continue
        raw = document.text.encode()
        block.append(raw)
        size += len(raw)
        if size >= group.block_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


def bytes_written(work: Path) -> int:
    """Bytes of text in blocks until now, for people who wait."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in (work / BLOCKS).glob("[0-9]*.txt"))
    return 0


def load_block(work: Path, name: str) -> list[bytes]:
    """The documents of a block."""
    return (work / BLOCKS / f"{name}.txt").read_bytes().split(b"\x00")
