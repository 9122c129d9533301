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

import hashlib
import json
import math
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
class TokenizedDocuments:
    """Documents laid end to end, none of them and none of their sentences empty.

    ids: int32 [n]; sentences: int64, tokens in each sentence; documents: int64, sentences in each document.
    """

    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray

    def only(self, chosen: np.ndarray) -> TokenizedDocuments:
        """Some of the documents, by bool [documents]."""
        sentences = np.repeat(chosen, self.documents)
        return TokenizedDocuments(
            self.ids[np.repeat(sentences, self.sentences)], self.sentences[sentences], self.documents[chosen]
        )


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
        if manifest.get("sha256") not in (None, _sum(manifest)):
            raise UserError(
                f"{folder / MANIFEST} was altered (its sha256 is not that of the rest of it): prepare again"
            )
        storage.verify(folder, manifest["files"], "prepare again")
        _require_listed(folder, manifest)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.fingerprint != manifest["tokenizer"]["fingerprint"]:
            raise UserError(f"{folder / TOKENIZER} is not the tokenizer that made these shards: prepare again")
        train, held_out = (_open_split(folder / name, manifest["splits"][name], tokenizer.size) for name in SPLITS)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST} is damaged ({error}): prepare again") from error
    return Shards(folder, tokenizer, train, held_out, manifest)


def _sum(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _require_listed(folder: Path, manifest: dict[str, Any]) -> None:
    """Errors: UserError where a shard's file is not in the list, so that nobody would notice if it was altered."""
    for name in SPLITS:
        for shard in range(manifest["splits"][name]["shards"]):
            for kind in ARRAYS:
                if f"{name}/{array_name(shard, kind)}" not in manifest["files"]:
                    raise UserError(
                        f"{folder / MANIFEST} does not list {name}/{array_name(shard, kind)}: prepare again"
                    )


def unlisted_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """Files in the folder that the manifest does not list."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name != MANIFEST and name not in manifest["files"])


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


def write_shard(folder: Path, shard: int, laid: TokenizedDocuments, tokenizer: Tokenizer) -> None:
    """Write one shard of documents that hold something."""
    sentence_starts = np.concatenate([[0], np.cumsum(laid.sentences)])
    arrays = (
        laid.ids.astype(token_dtype(tokenizer.size)),
        tokenizer.word_starts_table[laid.ids],
        sentence_starts,
        sentence_starts[np.concatenate([[0], np.cumsum(laid.documents)])],
    )
    _write(folder, shard, arrays)


def merge_shards(folder: Path, shard: int, parts: list[tuple[Path, int]]) -> None:
    """Make a shard of several, each a folder and its number there."""
    loaded = [[np.load(part / array_name(number, kind)) for kind in ARRAYS] for part, number in parts]
    tokens, word_starts, sentences, documents = zip(*loaded, strict=True)
    shard_starts = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    arrays = (
        np.concatenate(tokens),
        np.concatenate(word_starts),
        _number_through(list(sentences), shard_starts),
        _number_through(list(documents), shard_starts),
    )
    _write(folder, shard, arrays)


def _write(folder: Path, shard: int, arrays: tuple[np.ndarray, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in zip(ARRAYS, arrays, strict=True):
        storage.write_array(folder / array_name(shard, kind), array)


def token_dtype(vocabulary_size: int) -> np.dtype:
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def unigram_entropy(counts: np.ndarray) -> float:
    """Nats, of the distribution that the counts estimate."""
    share = counts[counts > 0] / counts.sum()
    return -math.fsum(share * np.log(share))


def write_manifest(
    folder: Path, tokenizer: Tokenizer, splits: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
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
    manifest["sha256"] = _sum(manifest)
    storage.write_json(folder / MANIFEST, manifest)
    return manifest
