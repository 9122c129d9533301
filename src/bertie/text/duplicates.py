"""Equal documents and paragraphs, found in two stages, so that neither memory nor one machine need hold them all.

1. Reading, each block notes a row for each of its documents (and paragraphs): the first 128 bits of the sha256, and
   which one it was: 24 bytes, sorted. Disk: 24 bytes a document or paragraph.
2. The hashes are parted by their first bits into as many parts as keep each under PART_BYTES; a part reads its slice of every
   block's rows, and says which rows have an equal one earlier. Memory: about three times PART_BYTES for each worker.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertie import storage

BLOCKS, FOUND = "blocks", "duplicates"  # folders
PART_BYTES = 128_000_000
PARAGRAPH = 100  # characters; shorter ones, such as headings and dates, are equal for good reasons
KINDS = ("documents", "paragraphs")
BLANK_LINE = re.compile(r"\n\s*\n")


@dataclass(frozen=True)
class HashPart:
    """One part of all hashes, `number` of `parts`."""

    work: Path
    kind: str
    number: int
    parts: int
    blocks: tuple[str, ...]


def kinds(choice: str) -> tuple[str, ...]:
    """What to look for: KINDS up to the choice."""
    return KINDS[: KINDS.index(choice) + 1] if choice in KINDS else ()


def paragraphs(text: str) -> list[str]:
    """What stands between blank lines, or, where there are none, each line."""
    return BLANK_LINE.split(text) if BLANK_LINE.search(text) else text.split("\n")


def write_hashes(block: Path, documents: list[bytes], choice: str) -> None:
    """Write the rows of a block, uint64 [3, n], sorted: hash, hash, number in the block."""
    for kind in kinds(choice):
        if kind == "documents":
            hashed = list(enumerate(documents))
        else:
            found = (part for raw in documents for part in paragraphs(raw.decode()))
            hashed = [(number, part.encode()) for number, part in enumerate(found) if len(part) >= PARAGRAPH]
        digests = b"".join(hashlib.sha256(raw).digest()[:16] for _, raw in hashed)
        rows = np.empty((3, len(hashed)), np.uint64)
        rows[:2] = np.frombuffer(digests, ">u8").reshape(-1, 2).T
        rows[2] = [number for number, _ in hashed]
        storage.write_array(block.with_name(f"{block.name}.{kind}.npy"), _sorted(rows))


def hash_parts(work: Path, kind: str, blocks: list[str]) -> list[HashPart]:
    """The pieces of the second stage."""
    size = sum((work / BLOCKS / f"{name}.{kind}.npy").stat().st_size for name in blocks)
    # A power of two: the first bits of a hash say which part it is in.
    count = 1 << max(0, -(-size // PART_BYTES) - 1).bit_length()
    return [HashPart(work, kind, number, count, tuple(blocks)) for number in range(count)]


def find_duplicates(part: HashPart) -> dict[str, Any]:
    """Write the documents or paragraphs that have an equal one earlier, int64 [2, n] sorted: block, number in it."""
    path = part.work / FOUND / f"{part.kind}-{part.number:05d}-of-{part.parts:05d}.npy"
    if not path.exists():
        rows = _sorted(_rows(part))
        again = rows[2:, 1:][:, (rows[:2, 1:] == rows[:2, :-1]).all(0)]
        path.parent.mkdir(exist_ok=True)
        storage.write_array(path, _sorted(again.astype(np.int64)))
    return {"found": np.load(path, mmap_mode="r").shape[1]}


def _sorted(rows: np.ndarray) -> np.ndarray:
    return rows[:, np.lexsort(rows[::-1])]


def _rows(part: HashPart) -> np.ndarray:
    """uint64 [4, n]: hash, hash, block, number in it; so the earliest of equal ones comes first when sorted."""
    width = (1 << 64) // part.parts
    first, last = np.uint64(part.number * width), np.uint64((part.number + 1) * width - 1)
    found = [np.zeros((4, 0), np.uint64)]
    for number, name in enumerate(part.blocks):
        rows = np.load(part.work / BLOCKS / f"{name}.{part.kind}.npy", mmap_mode="r")
        start, stop = np.searchsorted(rows[0], first), np.searchsorted(rows[0], last, side="right")
        block = np.full(int(stop - start), number, np.uint64)
        found.append(np.stack([*rows[:2, start:stop], block, rows[2, start:stop]]))
    return np.concatenate(found, axis=1)


def duplicates_in_block(work: Path, kind: str, block: int) -> set[int]:
    """Which documents or paragraphs of a block to leave out."""
    found: set[int] = set()
    for path in sorted((work / FOUND).glob(f"{kind}-*.npy")):
        rows = np.load(path, mmap_mode="r")
        start, stop = np.searchsorted(rows[0], [block, block + 1])
        found.update(rows[1, start:stop].tolist())
    return found
