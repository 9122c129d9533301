"""Exact duplicates among documents and paragraphs, found in two parallel stages with bounded memory.

1. `write_hashes`, when a block is read: one row per document (and per paragraph) with the first 128 bits of its sha256
   and its number in the block. Rows are sorted. Disk: 24 bytes per document or paragraph.
2. `find_duplicates`: the hash space is split by leading bits into parts of about PART_BYTES at most. A part reads its
   slice of every block's rows and writes the rows that have an equal row earlier in the corpus. Memory: about three
   times PART_BYTES per worker.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bertie.base import storage

BLOCKS, DUPLICATES = "blocks", "duplicates"  # folders
SEPARATOR = b"\x00"  # of documents; those with a NUL byte are skipped
PART_BYTES = 128_000_000
MIN_PARAGRAPH_CHARACTERS = 100  # shorter paragraphs, such as headings and dates, repeat for good reasons
KINDS = ("documents", "paragraphs")
BLANK_LINE = re.compile(r"\n\s*\n")


class HashPart(NamedTuple):
    """Work item of the second stage: part `number` of `parts` of the hash space, for one of KINDS."""

    kind: str
    number: int
    parts: int


def kinds(choice: str) -> tuple[str, ...]:
    """Return the kinds of duplicates to look for under a choice of `Filters.duplicates`: KINDS up to that choice."""
    return KINDS[: KINDS.index(choice) + 1] if choice in KINDS else ()


def split_paragraphs(text: str) -> list[str]:
    """Split text at blank lines, or, if it has none, at every line end."""
    return BLANK_LINE.split(text) if BLANK_LINE.search(text) else text.split("\n")


def texts_of(documents: list[bytes], kind: str) -> list[tuple[int, bytes]]:
    """Return the documents of a block with their numbers in it, or its paragraphs that are not too short."""
    if kind == "documents":
        return list(enumerate(documents))
    paragraphs = (paragraph for raw in documents for paragraph in split_paragraphs(raw.decode()))
    return [
        (number, paragraph.encode())
        for number, paragraph in enumerate(paragraphs)
        if len(paragraph) >= MIN_PARAGRAPH_CHARACTERS
    ]


def write_hashes(block: Path, documents: list[bytes], choice: str) -> None:
    """Write the hashes of a block's documents (and paragraphs, depending on the choice of `Filters.duplicates`)."""
    for kind in kinds(choice):
        texts = texts_of(documents, kind)
        write_rows(block.with_name(f"{block.name}.{kind}.npy"), (raw for _, raw in texts), [n for n, _ in texts])


def write_rows(path: Path, texts: Iterable[bytes], numbers: ArrayLike) -> None:
    """Write uint64 [3, n], sorted by columns: upper and lower half of the hash of each text, and its number in the block."""
    digests = b"".join(hashlib.sha256(raw).digest()[:16] for raw in texts)
    halves = np.frombuffer(digests, ">u8").reshape(-1, 2).T
    storage.write_array(path, _sorted(np.stack([*halves.astype(np.uint64), np.array(numbers, np.uint64)])))


def hash_parts(work: Path, kind: str, blocks: list[str]) -> list[HashPart]:
    """Return the work items of the second stage."""
    size = sum((work / BLOCKS / f"{name}.{kind}.npy").stat().st_size for name in blocks)
    # A power of two: the leading bits of a hash select its part.
    count = 1 << max(0, -(-size // PART_BYTES) - 1).bit_length()
    return [HashPart(kind, number, count) for number in range(count)]


def find_duplicates(work: Path, blocks: list[str], part: HashPart) -> None:
    """Write the repeated documents or paragraphs, all but the earliest of equal ones.

    The file holds int64 [2, n], sorted by columns: block, number in the block.
    """
    path = work / DUPLICATES / f"{part.kind}-{part.number:05d}-of-{part.parts:05d}.npy"
    if not path.exists():
        rows = sorted_rows(work, blocks, part)
        repeated = rows[2:, 1:][:, (rows[:2, 1:] == rows[:2, :-1]).all(0)]
        path.parent.mkdir(exist_ok=True)
        storage.write_array(path, _sorted(repeated.astype(np.int64)))


def _sorted(rows: np.ndarray) -> np.ndarray:
    """Sort columns by the first row, then the second, and so on."""
    return rows[:, np.lexsort(rows[::-1])]


def sorted_rows(work: Path, blocks: list[str], part: HashPart) -> np.ndarray:
    """Read uint64 [4, n], sorted by columns: hash (two rows), block, number in the block. The earliest of equals is first."""
    width = (1 << 64) // part.parts
    first, last = np.uint64(part.number * width), np.uint64((part.number + 1) * width - 1)
    slices = [np.zeros((4, 0), np.uint64)]
    for number, name in enumerate(blocks):
        rows = np.load(work / BLOCKS / f"{name}.{part.kind}.npy", mmap_mode="r")
        start, stop = np.searchsorted(rows[0], first), np.searchsorted(rows[0], last, side="right")
        block = np.full(int(stop - start), number, np.uint64)
        slices.append(np.stack([*rows[:2, start:stop], block, rows[2, start:stop]]))
    return _sorted(np.concatenate(slices, axis=1))


def duplicates_in_block(work: Path, kind: str, block: int) -> set[int]:
    """Return the numbers of a block's documents or paragraphs that have an equal one earlier in the corpus."""
    numbers: set[int] = set()
    for path in sorted((work / DUPLICATES).glob(f"{kind}-*.npy")):
        rows = np.load(path, mmap_mode="r")
        start, stop = np.searchsorted(rows[0], [block, block + 1])
        numbers.update(rows[1, start:stop].tolist())
    return numbers


def load_block(work: Path, name: str, languages: int) -> list[bytes]:
    """Return the UTF-8 documents of a block, each with a text in so many languages, separated by NUL bytes."""
    texts = (work / BLOCKS / f"{name}.txt").read_bytes().split(SEPARATOR)
    return [SEPARATOR.join(texts[start : start + languages]) for start in range(0, len(texts), languages)]
