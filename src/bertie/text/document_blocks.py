"""First stage of `prepare`: read files into blocks of documents. Each block is a work item of the last stage.

blocks/00000-00000.txt              documents of file group 0, block 0: UTF-8, separated by NUL bytes; with several
                                    languages, the translations of a document are separated by NUL bytes, too
blocks/00000-00000.documents.npy    hashes of these documents, see `duplicates`
blocks/00000.json                   names and counts of the group's blocks; its presence marks the group as done
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
from bertie.text.batching import batches
from bertie.text.duplicates import BLOCKS
from bertie.text.read_counts import ReadCounts
from bertie.text.readers import ReaderOptions, read_sources

SEPARATOR = b"\x00"  # documents with a NUL byte are skipped


@dataclass(frozen=True)
class Filters:
    """Documents to leave out. bertie counts them by reason."""

    min_characters: int = 0
    """Leave out documents with fewer characters."""
    max_characters: int = 0
    """Leave out documents with more characters. 0: no limit."""
    duplicates: Literal["keep", "documents", "paragraphs"] = "documents"
    """documents: leave out documents that equal an earlier one. paragraphs: also leave out paragraphs of at least 100
    characters that equal an earlier one. keep: leave out neither."""

    def __post_init__(self) -> None:
        if self.min_characters < 0 or self.max_characters < 0:
            raise UsageError("--min-characters and --max-characters must be 0 or more")
        if 0 < self.max_characters < self.min_characters:
            raise UsageError(
                f"--max-characters {self.max_characters} is less than --min-characters {self.min_characters}: "
                "no document can pass both"
            )


@dataclass(frozen=True)
class FileGroup:
    """Work item of this stage: some files, and how to read them.

    work: the hidden work folder of `prepare`; block_bytes: UTF-8 bytes after which a block ends.
    """

    work: Path
    number: int
    files: tuple[Source, ...]
    reader_options: ReaderOptions
    filters: Filters
    block_bytes: int


def run_once(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON in `path` if the file exists; otherwise call `compute` and write its result there."""
    if path.exists():
        return storage.read_json(path)
    result = compute()
    path.parent.mkdir(exist_ok=True)
    storage.write_atomic(path, json.dumps(result))
    return result


def read_group(group: FileGroup) -> dict[str, Any]:
    """Read a group of files and write its blocks, unless that is already done.

    Returns:
        {"blocks": names, "documents": count, "bytes": of UTF-8 text, "filtered": reason -> documents, "languages": for
        each language the documents that have it}, and the counts of `ReadCounts.as_json`.
    """
    folder = group.work / BLOCKS
    return run_once(folder / f"{group.number:05d}.json", lambda: _read_group(group, folder))


def _read_group(group: FileGroup, folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    read_counts = ReadCounts()
    languages = group.reader_options.languages
    result: dict[str, Any] = {
        "blocks": [],
        "documents": 0,
        "bytes": 0,
        "filtered": {},
        "languages": [0] * len(languages),
    }
    for block in batches(_documents(group, read_counts, result["filtered"]), group.block_bytes):
        name = f"{group.number:05d}-{len(result['blocks']):05d}"
        storage.write_atomic(folder / f"{name}.txt", SEPARATOR.join(block))
        duplicates.write_hashes(folder / name, block, group.filters.duplicates)
        result["blocks"].append(name)
        result["documents"] += len(block)
        result["bytes"] += sum(map(len, block))
        for document in block if languages else []:
            for number, text in enumerate(document.split(SEPARATOR)):
                result["languages"][number] += bool(text)
    return {**result, **read_counts.as_json()}


def _documents(group: FileGroup, read_counts: ReadCounts, filtered: dict[str, int]) -> Iterator[bytes]:
    """Yield the documents that pass the filters, as UTF-8, and count the others."""
    minimum, maximum = group.filters.min_characters, group.filters.max_characters
    for document in read_sources(list(group.files), group.reader_options, read_counts):
        length = len(document.text)
        if length < minimum or (maximum and length > maximum):
            reason = f"under {minimum:,} characters" if length < minimum else f"over {maximum:,} characters"
            filtered[reason] = filtered.get(reason, 0) + 1
        else:
            yield SEPARATOR.join(text.encode() for text in document.translations or (document.text,))


def bytes_written(work: Path) -> int:
    """Return the bytes of text in blocks so far, for the progress line."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in (work / BLOCKS).glob("[0-9]*.txt"))
    return 0


def load_block(work: Path, name: str, languages: int) -> list[bytes]:
    """Return the UTF-8 documents of a block, each with a text in so many languages, separated by NUL bytes."""
    texts = (work / BLOCKS / f"{name}.txt").read_bytes().split(SEPARATOR)
    return [SEPARATOR.join(texts[start : start + languages]) for start in range(0, len(texts), languages)]
