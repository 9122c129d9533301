"""The last stage of `prepare`: a block of documents to the tokens of its two sides.

encoded/00000.json          the block is done: counts
encoded/train/00000.….npy   a shard of its documents for training, where there are any; encoded/eval/… likewise
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bertie import storage
from bertie.text import blocks, duplicates, shards
from bertie.text.sentences import sentences
from bertie.text.shards import TokenizedDocuments
from bertie.text.tokenizer import Tokenizer
from bertie.text.word_cache import WordCache, batches

FOLDER = "encoded"
LOWEST = 9  # hashes of a block that are told: enough to say which --eval-share holds out 8 documents


@dataclass(frozen=True)
class Block:
    """Documents to encode, by one worker. number: among all blocks."""

    work: Path
    name: str
    number: int
    language: str
    eval_share: float
    duplicates: str
    fingerprint: str  # of the tokenizer that lies in `work`


def encode_block(block: Block) -> dict[str, Any]:
    """Counts of a block: {"duplicates": …, "empty": …, "lowest": …, "train": {…}, "eval": {…}}; its tokens go into files.

    lowest: the smallest of its documents' hashes, as shares: an `eval_share` above one holds that document out.
    """
    path = block.work / FOLDER / f"{block.number:05d}.json"
    return blocks.run_once(path, lambda: _encode(block))


@lru_cache(1)
def _memory(folder: Path, fingerprint: str) -> WordCache:
    """One a process: what a word is cut into does not depend on what was read before, only on the tokenizer."""
    memory = WordCache(Tokenizer.load(folder))
    assert memory.tokenizer.fingerprint == fingerprint
    return memory


def _encode(block: Block) -> dict[str, Any]:
    memory = _memory(block.work / shards.TOKENIZER, block.fingerprint)
    documents = _Kept(block)
    laid, held = tokenize_documents(documents, memory, block.language)
    hashes = np.array(documents.hashes, np.float64)[held]
    is_eval = hashes < block.eval_share
    told: dict[str, Any] = {"duplicates": documents.dropped, "empty": len(documents.hashes) - len(held)}
    told["lowest"] = np.sort(hashes)[:LOWEST].tolist()
    counts = []
    for name, side in ((shards.SPLITS[0], laid.only(~is_eval)), (shards.SPLITS[1], laid.only(is_eval))):
        if len(side.ids):
            shards.write_shard(block.work / FOLDER / name, block.number, side, memory.tokenizer)
        told[name] = _told(side, memory.tokenizer)
        counts.append(np.bincount(side.ids, minlength=memory.tokenizer.size))
    (block.work / FOLDER).mkdir(exist_ok=True)
    storage.write_array(block.work / FOLDER / f"{block.number:05d}.counts.npy", np.stack(counts))  # int64 [2, V]
    return told


class _Kept:
    """The texts of a block without duplicates; once they were gone through, their hashes from 0 to 1, and what was dropped."""

    def __init__(self, block: Block):
        self.block = block
        self.hashes: list[float] = []
        self.dropped = {kind: {"count": 0, "bytes": 0} for kind in duplicates.kinds(block.duplicates)}

    def __iter__(self) -> Iterator[str]:
        block = self.block
        again = {kind: duplicates.duplicates_in_block(block.work, kind, block.number) for kind in self.dropped}
        first = 0  # the number of a document's first paragraph
        for index, raw in enumerate(blocks.load_block(block.work, block.name)):
            text = raw.decode()
            parts = duplicates.paragraphs(text) if "paragraphs" in again else []
            numbers, first = range(first, first + len(parts)), first + len(parts)
            if index in again.get("documents", ()):
                self._drop("documents", len(raw))
                continue
            if not again.get("paragraphs", set()).isdisjoint(numbers):
                text = self._without(again["paragraphs"], zip(numbers, parts, strict=True))
            # Documents that are equal by now lie on one side: only the text decides.
            self.hashes.append(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64)
            yield text

    def _without(self, again: set[int], parts: Iterable[tuple[int, str]]) -> str:
        kept = []
        for number, part in parts:
            if number in again:
                self._drop("paragraphs", len(part.encode()))
            else:
                kept.append(part)
        return "\n\n".join(kept)

    def _drop(self, kind: str, size: int) -> None:
        self.dropped[kind]["count"] += 1
        self.dropped[kind]["bytes"] += size


def tokenize_documents(texts: Iterable[str], memory: WordCache, language: str) -> tuple[TokenizedDocuments, np.ndarray]:
    """Documents of sentences of tokens, and which of the texts they are: those that hold any, int64 [documents]."""
    ids: list[np.ndarray] = []
    sentence_tokens: list[np.ndarray] = []
    document_sentences: list[np.ndarray] = []
    for batch in batches(texts):
        split = [sentences(text, language) for text in batch]
        encoded = [memory.encode(chunk) for chunk in batches(chain.from_iterable(split))]  # one may be a large file
        tokens = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in encoded)])
        document = np.repeat(np.arange(len(batch)), np.fromiter(map(len, split), np.int64, len(split)))
        ids += [found for found, _ in encoded]
        sentence_tokens.append(tokens[tokens > 0])
        document_sentences.append(np.bincount(document[tokens > 0], minlength=len(batch)))
    documents = np.concatenate([np.zeros(0, np.int64), *document_sentences])
    laid = TokenizedDocuments(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros(0, np.int64), *sentence_tokens]),
        documents[documents > 0],
    )
    return laid, np.flatnonzero(documents)


def _told(side: TokenizedDocuments, tokenizer: Tokenizer) -> dict[str, Any]:
    """Counts of one side; lengths by powers of two: how many of 1 token, of 2 and 3, of 4 to 7 …"""
    tokens = np.add.reduceat(side.sentences, np.cumsum(side.documents) - side.documents) if len(side.documents) else []
    return {
        "documents": len(side.documents),
        "sentences": len(side.sentences),
        "tokens": len(side.ids),
        "words": int(tokenizer.word_starts_table[side.ids].sum()),
        "document_tokens": _by_powers(np.array(tokens, np.int64)),
        "sentence_tokens": _by_powers(side.sentences),
    }


def _by_powers(lengths: np.ndarray) -> list[int]:
    return np.bincount(np.frexp(lengths)[1] - 1, minlength=1).tolist() if len(lengths) else []
