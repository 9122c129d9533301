"""Writes token shards, and merges them: shard_format.py describes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.corpus.shard_format import (
    ARRAYS,
    FORMAT,
    MANIFEST,
    array_kinds,
    array_name,
    join_starts,
    manifest_sha256,
    token_dtype,
)
from bertie.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TokenizedDocuments:
    """Tokenized documents, end to end. No document and no sentence is empty.

    Attributes:
        ids: int32 [n], token ids.
        sentences: int64 [sentences], tokens of each sentence.
        documents: int64 [documents], sentences of each document.
        languages: uint16 [sentences], language of each sentence; None if the corpus has no languages.
    """

    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    languages: np.ndarray | None = None

    def select(self, chosen: np.ndarray) -> TokenizedDocuments:
        """Return the documents for which `chosen`, bool [documents], is true."""
        sentences = np.repeat(chosen, self.documents)
        return TokenizedDocuments(
            self.ids[np.repeat(sentences, self.sentences)],
            self.sentences[sentences],
            self.documents[chosen],
            None if self.languages is None else self.languages[sentences],
        )


def write_shard(folder: Path, shard: int, documents: TokenizedDocuments, tokenizer: Tokenizer) -> None:
    """Write documents, at least one, as one shard."""
    sentence_starts = np.concatenate([[0], np.cumsum(documents.sentences)])
    arrays = (
        documents.ids.astype(token_dtype(tokenizer.size)),
        tokenizer.word_starts(documents.ids, sentence_starts[:-1]),
        sentence_starts,
        sentence_starts[np.concatenate([[0], np.cumsum(documents.documents)])],
        *([] if documents.languages is None else [documents.languages]),
    )
    _write(folder, shard, arrays)


def merge_shards(folder: Path, shard: int, parts: list[tuple[Path, int]], languages: bool) -> None:
    """Write several shards, each given as (folder, shard number), as one. languages: whether the corpus has languages."""
    loaded = [[np.load(part / array_name(number, kind)) for kind in array_kinds(languages)] for part, number in parts]
    tokens, word_starts, sentences, documents, *more = zip(*loaded, strict=True)
    shard_starts = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    arrays = (
        np.concatenate(tokens),
        np.concatenate(word_starts),
        join_starts(list(sentences), shard_starts),
        join_starts(list(documents), shard_starts),
        *map(np.concatenate, more),
    )
    _write(folder, shard, arrays)


def _write(folder: Path, shard: int, arrays: tuple[np.ndarray, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, array in zip(array_kinds(len(arrays) > len(ARRAYS)), arrays, strict=True):
        storage.write_array(folder / array_name(shard, kind), array)


def write_manifest(
    folder: Path, tokenizer: Tokenizer, splits: dict[str, dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
    """Write the manifest, which completes the folder: it lists every file with its size and sha256.

    Args:
        folder: The folder of shards.
        tokenizer: The tokenizer of the shards.
        splits: Split name -> counts of the split, see SPLITS. Needs "shards".
        settings: Further entries of the manifest.

    Returns:
        The manifest.
    """
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        "format": FORMAT,
        "tokenizer": {"fingerprint": tokenizer.fingerprint, "size": tokenizer.size, "lowercase": tokenizer.lowercase},
        "dtype": token_dtype(tokenizer.size).name,
        "splits": splits,
        **settings,
        "files": storage.checksums(folder, paths),
    }
    manifest["sha256"] = manifest_sha256(manifest)
    storage.write_json(folder / MANIFEST, manifest)
    return manifest
