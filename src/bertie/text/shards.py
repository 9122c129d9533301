"""Token shards on disk: a folder per corpus, plain .npy arrays and a manifest that says what must be in it.

manifest.json                   format version, tokenizer, counts, entropy, size and sha256 of every other file
tokenizer/                      the tokenizer's files, so that the shards alone suffice to pre-train
train/00000.tokens.npy          uint16 [n] (uint32 where the vocabulary is larger than 65536), no special tokens
train/00000.word_starts.npy     bool   [n], false where a token continues a word
train/00000.sentences.npy       int64  [sentences + 1], where in this shard each sentence starts, and the end
train/00000.documents.npy       int64  [documents + 1], where in this shard each document starts, and the end
eval/…                          the same for the documents held out
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie import storage
from bertie.errors import UsageError, UserError
from bertie.text.tokenizer import Tokenizer

FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
SPLITS: tuple[Literal["train", "eval"], ...] = ("train", "eval")
ARRAYS = ("tokens", "word_starts", "sentences", "documents")


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split, memory-mapped. Tokens are numbered through all shards; a document lies whole in one shard.

    document_starts: int64 [documents + 1], the first token of each document, and the end.
    sentence_starts: int64 [sentences + 1], likewise; every document start is one.
    unigram_entropy: nats, of the split's tokens: the loss of a model that knows their frequencies and nothing else.
    """

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    unigram_entropy: float
    shard_starts: np.ndarray  # int64 [shards + 1]
    tokens: tuple[np.ndarray, ...]
    word_starts: tuple[np.ndarray, ...]

    def slice(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens start … stop - 1, all of one document: input_ids int32 [n], word_starts bool [n]."""
        shard = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        start, stop = start - int(self.shard_starts[shard]), stop - int(self.shard_starts[shard])
        return self.tokens[shard][start:stop].astype(np.int32), np.array(self.word_starts[shard][start:stop])

    def frequencies(self, vocabulary_size: int, most: int = 50_000_000) -> np.ndarray:
        """int64 [vocabulary_size]: how often each id occurs in the first shards, up to about `most` tokens."""
        counts = np.zeros(vocabulary_size, np.int64)
        for shard, start in zip(self.tokens, self.shard_starts, strict=False):
            if start < most:
                counts += np.bincount(shard, minlength=vocabulary_size)
        return counts


@dataclass(frozen=True, eq=False)
class Shards:
    """A prepared corpus, open for reading."""

    folder: Path
    tokenizer: Tokenizer
    train: Corpus
    eval: Corpus
    manifest: dict[str, Any]


def open_shards(folder: Path) -> Shards:
    """Open what `prepare` wrote; the size and sha256 of every file are checked.

    Errors: UsageError where there are no shards, UserError where a file is missing, cut or altered.
    """
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} holds no token shards (no {MANIFEST}): make them with `bertie prepare`")
    manifest = storage.read_json(folder / MANIFEST)
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise UserError(f"{folder / MANIFEST}: format {found!r}, but this version reads {FORMAT}: prepare again")
    try:
        storage.verify(folder, manifest["files"], "prepare again")
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.fingerprint != manifest["tokenizer"]["fingerprint"]:
            raise UserError(f"{folder / TOKENIZER} is not the tokenizer that made these shards: prepare again")
        train, held_out = (_open_split(folder / name, manifest["splits"][name], tokenizer.size) for name in SPLITS)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST} is damaged ({error}): prepare again") from error
    return Shards(folder, tokenizer, train, held_out, manifest)


def _open_split(folder: Path, counts: dict[str, Any], vocabulary_size: int) -> Corpus:
    if counts["shards"] < 1:
        raise ValueError(f"{counts['shards']} shards in {folder.name}")
    tokens, word_starts, sentences, documents = (
        [np.load(folder / array_name(shard, kind), mmap_mode="r") for shard in range(counts["shards"])]
        for kind in ARRAYS
    )
    for parts in zip(tokens, word_starts, sentences, documents, strict=True):
        _check_shard(*parts, vocabulary_size)
    shard_starts = np.cumsum([0, *(len(shard) for shard in tokens)], dtype=np.int64)
    return Corpus(
        document_starts=_number_through(documents, shard_starts),
        sentence_starts=_number_through(sentences, shard_starts),
        unigram_entropy=float(counts["unigram_entropy"]),
        shard_starts=shard_starts,
        tokens=tuple(tokens),
        word_starts=tuple(word_starts),
    )


def _check_shard(
    tokens: np.ndarray, word_starts: np.ndarray, sentences: np.ndarray, documents: np.ndarray, vocabulary_size: int
) -> None:
    """Errors: ValueError for arrays that no shard holds, whoever wrote them."""
    kinds = [array.dtype for array in (tokens, word_starts, sentences, documents)]
    if kinds != [token_dtype(vocabulary_size), bool, np.int64, np.int64] or any(
        array.ndim != 1 for array in (tokens, word_starts, sentences, documents)
    ):
        raise ValueError(f"arrays of {', '.join(map(str, kinds))}")
    for starts in (sentences, documents):
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(tokens) or (np.diff(starts) <= 0).any():
            raise ValueError("starts that do not rise from 0 to the number of tokens")
    if len(word_starts) != len(tokens) or not np.isin(documents, sentences).all() or tokens.max() >= vocabulary_size:
        raise ValueError("tokens, word starts, sentences and documents that do not fit together")


def _number_through(starts: list[np.ndarray], shard_starts: np.ndarray) -> np.ndarray:
    """Starts within each shard to starts within the split; the end of a shard is the start of the next."""
    parts = [shard[:-1] + offset for shard, offset in zip(starts, shard_starts[:-1], strict=True)]
    return np.concatenate([*parts, shard_starts[-1:]])


def array_name(shard: int, kind: str) -> str:
    return f"{shard:05d}.{kind}.npy"


def write_shard(folder: Path, shard: int, documents: Iterable[list[np.ndarray]], tokenizer: Tokenizer) -> np.ndarray:
    """Write one shard: documents, each a list of its sentences' ids. Returns how often each token occurs, int64 [V]."""
    documents = list(documents)
    sentences = [sentence for document in documents for sentence in document]
    ids = np.concatenate(sentences)
    sentence_starts = np.cumsum([0, *(len(sentence) for sentence in sentences)], dtype=np.int64)
    document_starts = sentence_starts[np.cumsum([0, *(len(document) for document in documents)])]
    arrays = (
        ids.astype(token_dtype(tokenizer.size)),
        tokenizer.word_starts_table[ids],
        sentence_starts,
        document_starts,
    )
    folder.mkdir(exist_ok=True)
    for kind, array in zip(ARRAYS, arrays, strict=True):
        np.save(folder / array_name(shard, kind), array, allow_pickle=False)
    return np.bincount(ids, minlength=tokenizer.size)


def token_dtype(vocabulary_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def entropy(counts: np.ndarray) -> float:
    """Nats, of the distribution that the counts estimate."""
    share = counts[counts > 0] / counts.sum()
    return -math.fsum(share * np.log(share))


def write_manifest(
    folder: Path, tokenizer: Tokenizer, splits: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> dict:
    """Close the folder: list every file in it with size and sha256. Returns the manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "size": tokenizer.size, "lowercase": tokenizer.lowercase},
        "dtype": token_dtype(tokenizer.size).name,
        "splits": splits,
        **settings,
        "files": storage.checksums(folder, paths),
    }
    storage.write_json(folder / MANIFEST, manifest)
    return manifest
