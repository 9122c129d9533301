"""The last stage of `prepare`: a block of documents to the tokens of its two sides.

encoded/00000.json          the block is done: counts
encoded/train/00000.….npy   a shard of its documents for training, where there are any; encoded/eval/… likewise
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken

from bertie import storage
from bertie.text import blocks, duplicates, shards
from bertie.text.sentences import sentences
from bertie.text.shards import Laid
from bertie.text.tokenizer import Tokenizer

FOLDER = "encoded"
BATCH_CHARACTERS = 1 << 20  # tokenized at a time
SEPARATOR = "\0"
SEPARATED = 1000  # words tokenized as one text: each text costs some 10 microseconds
REMEMBERED_WORDS = 500_000  # some 60 MB


@dataclass
class WordMemory:
    """Tokenizes by remembering words: running text repeats them, and BERT's rules never look beyond a blank."""

    tokenizer: Tokenizer
    separating: tokenizers.Tokenizer = field(init=False)
    beyond_blanks: bool = field(init=False)  # entries of others' vocabularies that are found across words
    number: dict[str, int] = field(default_factory=dict)
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # of all known words, end to end
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))  # [words + 1]

    def __post_init__(self) -> None:
        self.beyond_blanks = any(" " in token for token in self.tokenizer.user_tokens)
        self.separating = tokenizers.Tokenizer.from_str(self.tokenizer.backend.to_str())
        self.separating.encode_special_tokens = True
        self.separating.add_tokens([AddedToken(SEPARATOR, normalized=False)])

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """What `tokenizer.encode` gives, end to end: ids int32 [n], and how many each text has, int64 [texts].

        In less than half its time where texts have words in common.
        """
        if self.beyond_blanks:
            encoded = self.tokenizer.encode(texts)
            return np.concatenate([self.ids[:0], *encoded]), np.array([len(ids) for ids in encoded], np.int64)
        if len(self.number) > REMEMBERED_WORDS:
            self.number, self.ids, self.starts = {}, self.ids[:0], self.starts[:1]
        split = [text.split(" ") for text in texts]
        words = list(chain.from_iterable(split))
        self._learn(set(words).difference(self.number))
        known = np.fromiter(map(self.number.__getitem__, words), np.int64, len(words))
        starts = self.starts[known]
        lengths = self.starts[known + 1] - starts
        ends = np.cumsum(lengths)
        # Token t of the text is the one after token t - 1, but where a word begins.
        steps = np.ones(int(ends[-1]) if len(ends) else 0, np.int64)
        held = np.flatnonzero(lengths)
        begins = (ends - lengths)[held]
        steps[begins] = starts[held] - np.concatenate([[0], (starts + lengths - 1)[held[:-1]]])
        of_text = np.concatenate([[0], np.cumsum(np.fromiter(map(len, split), np.int64, len(split)))])
        tokens = np.diff(np.concatenate([[0], ends])[of_text])
        return self.ids[np.cumsum(steps)], tokens

    def _learn(self, new: set[str]) -> None:
        if not new:
            return
        words = list(new)
        parts = [words[start : start + SEPARATED] for start in range(0, len(words), SEPARATED)]
        # A separator in a word is a control character, which BERT's rules take out.
        lines = [SEPARATOR.join(word.replace(SEPARATOR, "") for word in part) + SEPARATOR for part in parts]
        encodings = self.separating.encode_batch_fast(lines, add_special_tokens=False)
        ids = np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings])
        ends = np.flatnonzero(ids == self.tokenizer.size)
        lengths = np.diff(ends, prepend=-1) - 1
        self.number.update(zip(words, range(len(self.number), len(self.number) + len(words)), strict=True))
        self.starts = np.concatenate([self.starts, self.starts[-1] + np.cumsum(lengths)])
        self.ids = np.concatenate([self.ids, np.delete(ids, ends)])


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
    """Counts of a block: {"duplicates": …, "empty": …, "train": {…}, "eval": {…}}; and of its tokens, in files."""
    path = block.work / FOLDER / f"{block.number:05d}.json"
    return blocks.once(path, lambda: _encode(block))


@lru_cache(1)
def _memory(folder: Path, fingerprint: str) -> WordMemory:
    """One a process: what a word is cut into does not depend on what was read before, only on the tokenizer."""
    memory = WordMemory(Tokenizer.load(folder))
    assert memory.tokenizer.fingerprint == fingerprint
    return memory


def _encode(block: Block) -> dict[str, Any]:
    memory = _memory(block.work / shards.TOKENIZER, block.fingerprint)
    documents = _Kept(block)
    laid, held = lay_out(documents, memory, block.language)
    is_eval = np.array(documents.is_eval, bool)[held]
    told: dict[str, Any] = {"duplicates": documents.dropped, "empty": len(documents.is_eval) - len(held)}
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
    """The texts of a block without duplicates; once they were gone through, which are for evaluation, and what was dropped."""

    def __init__(self, block: Block):
        self.block = block
        self.is_eval: list[bool] = []
        self.dropped = {kind: {"count": 0, "bytes": 0} for kind in duplicates.kinds(block.duplicates)}

    def __iter__(self) -> Iterator[str]:
        block = self.block
        again = {kind: duplicates.of_block(block.work, kind, block.number) for kind in self.dropped}
        first = 0  # the number of a document's first paragraph
        for index, raw in enumerate(blocks.load(block.work, block.name)):
            text = raw.decode()
            parts = duplicates.paragraphs(text) if "paragraphs" in again else []
            numbers, first = range(first, first + len(parts)), first + len(parts)
            if index in again.get("documents", ()):
                self._drop("documents", len(raw))
                continue
            if not again.get("paragraphs", set()).isdisjoint(numbers):
                text = self._without(again["paragraphs"], zip(numbers, parts, strict=True))
            # Documents that are equal by now lie on one side: only the text decides.
            share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) / 2**64
            self.is_eval.append(share < block.eval_share)
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


def lay_out(texts: Iterable[str], memory: WordMemory, language: str) -> tuple[Laid, np.ndarray]:
    """Documents of sentences of tokens, and which of the texts they are: those that hold any, int64 [documents]."""
    ids: list[np.ndarray] = []
    sentence_tokens: list[np.ndarray] = []
    document_sentences: list[np.ndarray] = []
    for batch in _batches(texts):
        split = [sentences(text, language) for text in batch]
        encoded = [memory.encode(chunk) for chunk in _batches(chain.from_iterable(split))]  # one may be a large file
        tokens = np.concatenate([np.zeros(0, np.int64), *(lengths for _, lengths in encoded)])
        document = np.repeat(np.arange(len(batch)), np.fromiter(map(len, split), np.int64, len(split)))
        ids += [found for found, _ in encoded]
        sentence_tokens.append(tokens[tokens > 0])
        document_sentences.append(np.bincount(document[tokens > 0], minlength=len(batch)))
    documents = np.concatenate([np.zeros(0, np.int64), *document_sentences])
    laid = Laid(
        np.concatenate([np.zeros(0, np.int32), *ids]),
        np.concatenate([np.zeros(0, np.int64), *sentence_tokens]),
        documents[documents > 0],
    )
    return laid, np.flatnonzero(documents)


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


def _told(side: Laid, tokenizer: Tokenizer) -> dict[str, Any]:
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
