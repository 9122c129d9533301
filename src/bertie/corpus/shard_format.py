"""Token shards: the on-disk format of a prepared corpus. One folder of plain .npy arrays and a manifest.

manifest.json                   format version, tokenizer, counts, entropy, size and sha256 of every other file
tokenizer/                      the tokenizer's files: the shards alone suffice for pre-training
train/00000.tokens.npy          uint16 [n] (uint32 for vocabularies of more than 65536 entries), no special tokens
train/00000.word_starts.npy     bool   [n], false for tokens that continue a word
train/00000.sentences.npy       int64  [sentences + 1], first token of each sentence in this shard, and n
train/00000.documents.npy       int64  [documents + 1], first token of each document in this shard, and n
train/00000.languages.npy       uint16 [sentences], language of each sentence, an index into `languages` of the manifest;
                                only if the manifest has this key. A document has all sentences of a language together
eval/…                          the same for the held-out documents
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertie.base.errors import UserError

FORMAT = 1
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
SPLITS: tuple[Literal["train", "eval"], ...] = ("train", "eval")
ARRAYS = ("tokens", "word_starts", "sentences", "documents")
LANGUAGES = "languages"  # the array and the key of the manifest


def read_languages(manifest: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the languages, or raise ValueError."""
    names = manifest.get(LANGUAGES, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"languages is {names!r:.60}")
    return tuple(names)


def manifest_sha256(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def require_listed(place: object, manifest: dict[str, Any]) -> None:
    """Raise UserError if the manifest lacks a file of a shard: alterations of that file would go unnoticed."""
    for name in SPLITS:
        for shard in range(manifest["splits"][name]["shards"]):
            for kind in array_kinds(LANGUAGES in manifest):
                if f"{name}/{array_name(shard, kind)}" not in manifest["files"]:
                    raise UserError(f"{place} does not list {name}/{array_name(shard, kind)}: prepare again")


def unlisted_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """List the files in the folder that the manifest does not list, as relative paths."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != MANIFEST and name not in manifest["files"])


def check_starts(sentences: np.ndarray, documents: np.ndarray) -> None:
    """Raise ValueError for starts that no shard can have: another program may have written them."""
    for starts in (sentences, documents):
        _require_kind(starts, np.int64)
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != sentences[-1] or (np.diff(starts) <= 0).any():
            raise ValueError("sentence or document starts do not rise from 0 to the number of tokens")
    # Both rise: much faster than isin.
    if not (sentences[np.searchsorted(sentences, documents)] == documents).all():
        raise ValueError("a document begins inside a sentence")


def check_tokens(tokens: np.ndarray, count: int, vocabulary_size: int) -> None:
    """Raise ValueError for an array that cannot be the `count` tokens of a shard."""
    _require_kind(tokens, token_dtype(vocabulary_size))
    if len(tokens) != count or tokens.max() >= vocabulary_size:
        raise ValueError("tokens do not match the sentences or the vocabulary")


def check_word_starts(word_starts: np.ndarray, count: int) -> None:
    """Raise ValueError for an array that cannot be the word starts of a shard of `count` tokens."""
    _require_kind(word_starts, bool)
    if len(word_starts) != count:
        raise ValueError("word starts do not match the sentences")


def _require_kind(array: np.ndarray, dtype: Any) -> None:
    if array.dtype != dtype or array.ndim != 1:
        raise ValueError(f"wrong dtype or dimensions: {array.dtype} {array.shape}")


def array_kinds(languages: bool) -> tuple[str, ...]:
    """Return the arrays of a shard: ARRAYS, and the languages if the corpus has any."""
    return (*ARRAYS, LANGUAGES) if languages else ARRAYS


def array_name(shard: int, kind: str) -> str:
    """Return the file name of an array."""
    return f"{shard:05d}.{kind}.npy"


def token_dtype(vocabulary_size: int) -> np.dtype:
    """Return the dtype of token ids on disk."""
    return np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32)


def join_starts(starts: list[np.ndarray], shard_starts: np.ndarray) -> np.ndarray:
    """Turn starts within each shard into starts within the split. The end of a shard is the start of the next."""
    parts = [shard[:-1] + offset for shard, offset in zip(starts, shard_starts[:-1], strict=True)]
    return np.concatenate([*parts, shard_starts[-1:]])
