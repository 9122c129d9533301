"""Documents to token shards: split, cut into sentences, tokenized, written once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from bertie import console, storage
from bertie.contracts import Document
from bertie.errors import UsageError, UserError
from bertie.text import readers, shards
from bertie.text.sentences import sentences
from bertie.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20  # tokenized at a time: enough to keep threads busy, small beside a shard
REMEMBERED_WORDS = 500_000  # some 100 MB


@dataclass(frozen=True)
class WordMemory:
    """Tokenizes by remembering words: running text repeats them, and BERT's rules never look beyond a blank."""

    tokenizer: Tokenizer
    known: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, texts: list[str]) -> list[np.ndarray]:
        """What `tokenizer.encode` gives, in less than half its time where texts have words in common."""
        if len(self.known) > REMEMBERED_WORDS:
            self.known.clear()
        split = [text.split(" ") for text in texts]
        new = list(set(chain.from_iterable(split)).difference(self.known))
        self.known.update(zip(new, (ids.tolist() for ids in self.tokenizer.encode(new)), strict=True))
        ids_of = self.known.__getitem__
        return [np.fromiter(chain.from_iterable(map(ids_of, words)), np.int32) for words in split]


@dataclass
class _Split:
    """One side of the corpus while it is written: documents gather until they make a shard."""

    name: str
    counts: np.ndarray  # int64 [V], how often each token occurs
    shards: int = 0
    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    waiting: list[list[np.ndarray]] = field(default_factory=list)
    waiting_bytes: int = 0

    def add(self, document: list[np.ndarray], size: int) -> None:
        """Take a document, as its sentences' ids, that was `size` bytes of text."""
        self.waiting.append(document)
        self.waiting_bytes += size
        self.documents += 1
        self.sentences += len(document)
        self.tokens += sum(map(len, document))

    def write(self, folder: Path, tokenizer: Tokenizer) -> None:
        if self.waiting:
            self.counts += shards.write_shard(folder / self.name, self.shards, self.waiting, tokenizer)
            self.shards += 1
            self.waiting, self.waiting_bytes = [], 0

    def summary(self, special_ids: np.ndarray) -> dict[str, Any]:
        counts = self.counts.copy()
        counts[special_ids] = 0
        return {
            "shards": self.shards,
            "documents": self.documents,
            "sentences": self.sentences,
            "tokens": self.tokens,
            "unigram_entropy": shards.entropy(counts),
        }


def prepare(
    paths: list[Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    eval_share: float = 0.01,
    documents: readers.Boundary = "blank-line",
    text_field: str = "text",
    language: str = "en",
    shard_bytes: int = 64_000_000,
) -> dict[str, Any]:
    """Write token shards to `out`, which must not exist, and return their manifest. Same input, same bytes.

    A document goes to the eval side by the hash of its text, with probability `eval_share`: equal documents lie on
    one side. A shard ends with the document that brings it to `shard_bytes` bytes of text.
    Errors: UsageError; UserError, also where a side has fewer than two documents (a pair of texts takes two).
    """
    storage.require_fresh(out, "the shards")
    readers.require_outside(out, paths)
    if not 0 < eval_share < 1:
        raise UsageError(f"--eval-share {eval_share:g}: give a share of the documents between 0 and 1, such as 0.01")
    if shard_bytes < 1:
        raise UsageError(f"--shard-bytes {shard_bytes}: give at least 1")
    train, held_out = sides = [_Split(name, np.zeros(tokenizer.size, np.int64)) for name in shards.SPLITS]
    skipped = 0
    with (
        console.progress("prepare", readers.expected_bytes(paths) / 1e6, "MB") as bar,
        storage.atomic_folder(out) as folder,
    ):
        tokenizer.save(folder / shards.TOKENIZER)
        found = readers.read(
            paths, documents=documents, text_field=text_field, on_bytes=lambda count: bar.advance(count / 1e6)
        )
        for text, ids in _tokenize(found, tokenizer, language):
            if not ids:
                skipped += 1
                continue
            raw = text.encode()
            side = held_out if _unit_hash(raw) < eval_share else train
            side.add(ids, len(raw))
            if side.waiting_bytes >= shard_bytes:
                side.write(folder, tokenizer)
        _require_documents(train, held_out, eval_share, skipped)
        for side in sides:
            side.write(folder, tokenizer)
        splits = {side.name: side.summary(tokenizer.special_ids) for side in sides}
        settings = {"eval_share": eval_share, "language": language, "shard_bytes": shard_bytes, "skipped": skipped}
        return shards.write_manifest(folder, tokenizer, splits, settings)


def _unit_hash(raw: bytes) -> float:
    """A number in [0, 1) that only the text decides."""
    return int.from_bytes(hashlib.sha256(raw).digest()[:8]) / 2**64


def _tokenize(
    documents: Iterable[Document], tokenizer: Tokenizer, language: str
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Each document's text with the ids of its sentences; sentences without tokens are left out."""
    memory = WordMemory(tokenizer)
    for batch in _batches(document.text for document in documents):
        split = [sentences(text, language) for text in batch]
        chunks = _batches(sentence for document in split for sentence in document)  # one document may be a large file
        ids = (encoded for chunk in chunks for encoded in memory.encode(chunk))
        for text, document in zip(batch, split, strict=True):
            yield text, [sentence for sentence in islice(ids, len(document)) if len(sentence)]


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _require_documents(train: _Split, held_out: _Split, eval_share: float, skipped: int) -> None:
    total = train.documents + held_out.documents
    if total == 0:
        because = f"all {skipped} documents are without tokens" if skipped else "the files hold no documents"
        raise UserError(f"no text to prepare: {because}")
    for side, flag in ((held_out, "raise"), (train, "lower")):
        if side.documents < 2:
            raise UserError(
                f"{side.documents} of {total} documents on the {side.name} side, which needs at least 2: "
                f"{flag} --eval-share (now {eval_share:g}) or give more documents"
            )
