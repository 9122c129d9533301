"""First stage of `prepare`: read files into blocks of documents. Each block is a work item of the last stage.

blocks/00000-00000.txt              documents of file group 0, block 0: UTF-8, separated by NUL bytes; with several
                                    languages, the translations of a document are separated by NUL bytes, too
blocks/00000-00000.documents.npy    hashes of these documents, see `duplicates`
blocks/00000-00000.near-documents.*  what finds their near-copies, see `near_duplicates`
blocks/00000.json                   names and counts of the group's blocks; its presence marks the group as done
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bertie.base import storage
from bertie.base.contracts import Document
from bertie.base.errors import UsageError
from bertie.corpus.duplicates import BLOCKS, SEPARATOR, kinds, write_hashes
from bertie.corpus.near_duplicates import NEAR, write_signatures
from bertie.corpus.readers import ReadCounts, ReaderOptions, read_sources
from bertie.corpus.shard_format import LANGUAGES
from bertie.files.sources import Source
from bertie.tokenizers.batching import batches


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
    near_duplicates: float = 0.0
    """Also leave out documents, and paragraphs if `duplicates` names them, of whose distinct pairs of neighboring words at least
    this share is in both of them and an earlier one (Jaccard index), such as 0.8. 0: only equal ones."""

    def __post_init__(self) -> None:
        if self.near_duplicates and not 0.3 <= self.near_duplicates <= 1:
            raise UsageError(f"--near-duplicates {self.near_duplicates:g}: give a share from 0.3 to 1, or 0")
        if self.near_duplicates and self.duplicates == "keep":
            raise UsageError("--near-duplicates does not work with --duplicates keep: remove one of them")
        if self.min_characters < 0 or self.max_characters < 0:
            raise UsageError("--min-characters and --max-characters must be 0 or more")
        if 0 < self.max_characters < self.min_characters:
            raise UsageError(f"--max-characters is less than --min-characters {self.min_characters}: raise it")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of copies to look for, in the names of files and counts."""
        equal = kinds(self.duplicates)
        return (*equal, *(f"{NEAR}{kind}" for kind in equal if self.near_duplicates))


@dataclass(frozen=True)
class PrepareSettings:
    """The arguments of `prepare` that its stages need, besides the files. They determine the bytes of the shards."""

    eval_share: float
    language: str
    reader_options: ReaderOptions
    filters: Filters
    shard_bytes: int
    fingerprint: str  # of the tokenizer

    def __post_init__(self) -> None:
        if not 0 < self.eval_share < 1:
            raise UsageError(f"--eval-share {self.eval_share:g}: give a share between 0 and 1, for example 0.01")
        if self.shard_bytes < 1:
            raise UsageError(f"--shard-bytes {self.shard_bytes}: give at least 1")
        if self.reader_options.languages and self.language != "en":
            raise UsageError("--languages also sets the languages of sentence splitting: remove --language")
        if self.reader_options.languages and self.filters.duplicates == "paragraphs":
            raise UsageError("--duplicates paragraphs does not work with --languages: choose documents or keep")

    def as_json(self) -> dict[str, Any]:
        """Return the settings as the manifest lists them."""
        languages = list(self.reader_options.languages)
        return {
            **({LANGUAGES: languages} if languages else {}),
            "eval_share": self.eval_share,
            "language": self.language,
            "shard_bytes": self.shard_bytes,
            "filters": asdict(self.filters),
            "reading": asdict(self.reader_options) | {"languages": languages},
        }


def run_once(path: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON in `path` if the file exists; otherwise call `compute` and write its result there."""
    if path.exists():
        return storage.read_json(path, None)
    result = compute()
    path.parent.mkdir(exist_ok=True)
    storage.write_atomic(path, json.dumps(result))
    return result


def read_group(settings: PrepareSettings, work: Path, group: tuple[int, list[Source]]) -> dict[str, Any]:
    """Read a group of files and write its blocks, unless that is already done.

    Args:
        settings: How to read the files.
        work: The hidden work folder of `prepare`.
        group: Number of the group, and its files.

    Returns:
        {"blocks": names, "documents": count, "bytes": of UTF-8 text, "filtered": reason -> documents, "languages": for
        each language the documents that have it}, and the counts of `ReadCounts.as_json`.
    """
    number, files = group
    path = work / BLOCKS / f"{number:05d}.json"
    return run_once(path, lambda: _read_group(settings, files, path))


def _read_group(settings: PrepareSettings, files: list[Source], path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    read_counts, filtered, languages = ReadCounts(), Counter[str](), settings.reader_options.languages
    result: dict[str, Any] = {"blocks": [], "documents": 0, "bytes": 0, "languages": [0] * len(languages)}
    documents = read_sources(files, settings.reader_options, read_counts)
    for block in batches(_passing(documents, settings.filters, filtered), settings.shard_bytes):
        name = f"{path.stem}-{len(result['blocks']):05d}"
        storage.write_atomic(path.with_name(f"{name}.txt"), SEPARATOR.join(block))
        write_hashes(path.with_name(name), block, settings.filters.duplicates)
        if share := settings.filters.near_duplicates:
            write_signatures(path.with_name(name), block, settings.filters.duplicates, share)
        result["blocks"].append(name)
        result["documents"] += len(block)
        result["bytes"] += sum(map(len, block))
        for document in block if languages else []:
            for number, text in enumerate(document.split(SEPARATOR)):
                result["languages"][number] += bool(text)
    return {**result, "filtered": filtered, **read_counts.as_json()}


def _passing(documents: Iterator[Document], filters: Filters, filtered: Counter[str]) -> Iterator[bytes]:
    """Yield the documents that pass the filters, as UTF-8, and count the others."""
    minimum, maximum = filters.min_characters, filters.max_characters
    for document in documents:
        if len(document.text) < minimum:
            filtered[f"under {minimum:,} characters"] += 1
        elif maximum and len(document.text) > maximum:
            filtered[f"over {maximum:,} characters"] += 1
        else:
            yield SEPARATOR.join(text.encode() for text in document.translations or (document.text,))


def bytes_written(work: Path) -> int:
    """Return the bytes of text in blocks so far, for the progress line."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in (work / BLOCKS).glob("[0-9]*.txt"))
    return 0
