"""Near-copies among documents and paragraphs, found in two parallel stages with bounded memory, as `duplicates` finds equal ones.

1. `write_signatures`, when a block is read: the hashed pairs of neighboring words of each document (and paragraph), and the bands
   of its MinHash signature (Broder 1997), as rows of hashes like those of `duplicates`.
2. `find_near_duplicates`: texts with an equal band are compared by their pairs of words, so that nothing else goes.

blocks/00000-00000.near-documents.npy          the hashes of the bands
blocks/00000-00000.near-documents.pairs.npy    uint64, the sorted hashes of the pairs of words of each text, end to end
blocks/00000-00000.near-documents.ends.npy     int64 [2, n]: number in the block, and end in pairs.npy
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.base import storage
from bertie.corpus.duplicates import BLOCKS, DUPLICATES, HashPart, kinds, load_block, sorted_rows, texts_of, write_rows
from bertie.corpus.sentences import UNSPACED

NEAR = "near-"  # before the kind of text, in the names of files and counts
MISSED = 0.03  # of the pairs whose Jaccard index is the threshold: those without an equal band
MOST_HASHES = 128  # of a signature
EXAMPLES, SHOWN = 10, 300  # of the report, and their first characters
MOST_COMPARED = 1_000  # earlier texts with the same band
_SEED = 1
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")


def bands_of(threshold: float) -> tuple[int, int]:
    """Return the number of bands of a signature, and the number of hashes of a band: as many as MOST_HASHES allows.

    Two texts with the Jaccard index J have an equal band with the probability 1 - (1 - J^hashes)^bands.
    """
    bands = {hashes: math.ceil(math.log(MISSED) / math.log1p(-(threshold**hashes))) for hashes in range(1, 33)}
    hashes = max(hashes for hashes, count in bands.items() if hashes * count <= MOST_HASHES)
    return bands[hashes], hashes


def write_signatures(block: Path, documents: list[bytes], choice: str, threshold: float) -> None:
    """Write what `find_near_duplicates` needs of a block's documents, and paragraphs, as `Filters.duplicates` says."""
    from datasketch import MinHash

    bands, hashes = bands_of(threshold)
    for kind in kinds(choice):
        found = [(number, pairs) for number, pairs in _pairs_of_words(texts_of(documents, kind)) if len(pairs)]
        shorter = ((pairs >> np.uint64(32)).tolist() for _, pairs in found)
        signatures = MinHash.generator(shorter, num_perm=bands * hashes, seed=_SEED, hashfunc=int)
        parts = chain.from_iterable(one.hashvalues.reshape(bands, hashes) for one in signatures)
        numbers = [number for number, _ in found]
        name = f"{block.name}.{NEAR}{kind}"
        named = (b"%d %b" % (number % bands, part.tobytes()) for number, part in enumerate(parts))
        write_rows(block.with_name(f"{name}.npy"), named, np.repeat(numbers, bands))
        ends = np.cumsum([len(pairs) for _, pairs in found])
        storage.write_array(block.with_name(f"{name}.ends.npy"), np.array([numbers, ends], np.int64))
        every = np.concatenate([np.zeros(0, np.uint64), *(pairs for _, pairs in found)])
        storage.write_array(block.with_name(f"{name}.pairs.npy"), every)


def _pairs_of_words(texts: list[tuple[int, bytes]]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each text's number, and the sorted hashes of its distinct pairs of neighboring words, or of its only word."""
    known: dict[str, int] = {}
    for number, raw in texts:
        words = _WORD.findall(raw.decode().lower())
        for word in {*words} - known.keys():
            known[word] = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8])
        hashes = np.array([known[word] for word in words], np.uint64)
        pairs = hashes[:-1] * np.uint64(0x9E3779B97F4A7C15) + hashes[1:] if len(words) > 1 else hashes
        yield number, np.unique(pairs ^ (pairs >> np.uint64(29)))


def find_near_duplicates(work: Path, blocks: list[str], threshold: float, part: HashPart) -> None:
    """Write the documents or paragraphs with a near-copy earlier in the corpus, for a part of the bands.

    The file holds int64 [4, n], sorted by columns: block, number in the block, and those of the earlier one.
    """
    path = work / DUPLICATES / f"{part.kind}-{part.number:05d}-of-{part.parts:05d}.npy"
    if path.exists():
        return
    rows = sorted_rows(work, blocks, part)
    starts = np.flatnonzero(np.append(True, (rows[:2, 1:] != rows[:2, :-1]).any(0)))
    texts, found = rows[2:].T.astype(np.int64), [np.zeros((0, 4), np.int64)]
    pairs = _PairsOfBlocks(work, blocks, part.kind)
    for start, stop in zip(starts, [*starts[1:], len(texts)], strict=True):
        for later in range(start + 1, stop):
            candidates = texts[start : min(later, start + MOST_COMPARED)]
            near = (each for each in candidates if _jaccard(pairs.of(*each), pairs.of(*texts[later])) >= threshold)
            if (earlier := next(near, None)) is not None:
                found.append(np.concatenate([texts[later], earlier])[None])
    path.parent.mkdir(exist_ok=True)
    storage.write_array(path, np.unique(np.concatenate(found), axis=0).T)


class NearCopy(NamedTuple):
    """An example of a text that was left out."""

    share: float
    """The share of their pairs of words that both texts have."""
    text: str
    """Its beginning."""
    earlier: str
    """The beginning of the text that it nearly equals."""


def examples(work: Path, blocks: list[str], languages: int) -> list[NearCopy]:
    """Return EXAMPLES of the documents and paragraphs that were left out, of each file of `find_near_duplicates` the first."""
    found = list[NearCopy]()
    for path in sorted((work / DUPLICATES).glob(f"{NEAR}*.npy"))[:EXAMPLES]:
        kind = path.name.removeprefix(NEAR).partition("-")[0]
        pairs = _PairsOfBlocks(work, blocks, f"{NEAR}{kind}")
        for pair in np.load(path).T[:EXAMPLES].reshape(-1, 2, 2):
            texts = [dict(texts_of(load_block(work, blocks[block], languages), kind))[n].decode() for block, n in pair]
            found.append(
                NearCopy(round(_jaccard(*(pairs.of(*each) for each in pair)), 3), *(text[:SHOWN] for text in texts))
            )
    return found[:EXAMPLES]


class _PairsOfBlocks:
    """The pairs of words of each text, mapped from the files of the blocks."""

    def __init__(self, work: Path, blocks: list[str], kind: str):
        self.files = [work / BLOCKS / f"{name}.{kind}" for name in blocks]
        self.opened: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def of(self, block: int, number: int) -> np.ndarray:
        if block not in self.opened:
            names = (self.files[block].with_name(f"{self.files[block].name}.{part}.npy") for part in ("ends", "pairs"))
            self.opened[block] = tuple(np.load(name, mmap_mode="r") for name in names)
        ends, pairs = self.opened[block]
        place = np.searchsorted(ends[0], number)
        return pairs[ends[1, place - 1] if place else 0 : ends[1, place]]


def _jaccard(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Jaccard index of two sorted sets."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)
