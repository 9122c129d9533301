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
import math
from dataclasses import dataclass, replace
from functools import cached_property
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


def require_listed(folder: Path, manifest: dict[str, Any]) -> None:
    """Raise UserError if the manifest lacks a file of a shard: alterations of that file would go unnoticed."""
    for name in SPLITS:
        for shard in range(manifest["splits"][name]["shards"]):
            for kind in array_kinds(LANGUAGES in manifest):
                if f"{name}/{array_name(shard, kind)}" not in manifest["files"]:
                    raise UserError(
                        f"{folder / MANIFEST} does not list {name}/{array_name(shard, kind)}: prepare again"
                    )


def unlisted_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """List the files in the folder that the manifest does not list, as relative paths."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if name != MANIFEST and name not in manifest["files"])


def check_arrays(
    tokens: np.ndarray, word_starts: np.ndarray, sentences: np.ndarray, documents: np.ndarray, vocabulary_size: int
) -> None:
    """Raise ValueError for arrays that cannot be a shard: another program may have written them and the manifest."""
    arrays = (tokens, word_starts, sentences, documents)
    dtypes = [array.dtype for array in arrays]
    expected = [token_dtype(vocabulary_size), bool, np.int64, np.int64]
    if dtypes != expected or any(array.ndim != 1 for array in arrays):
        raise ValueError(f"wrong dtypes or dimensions: {', '.join(map(str, dtypes))}")
    for starts in (sentences, documents):
        if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(tokens) or (np.diff(starts) <= 0).any():
            raise ValueError("sentence or document starts do not rise from 0 to the number of tokens")
    nested = (sentences[np.searchsorted(sentences, documents)] == documents).all()  # both rise: much faster than isin
    if len(word_starts) != len(tokens) or not nested or tokens.max() >= vocabulary_size:
        raise ValueError("tokens, word starts, sentences and documents do not match")


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


def unigram_loss(train: np.ndarray, held_out: np.ndarray, special_ids: np.ndarray) -> float:
    """Return the loss on held-out text, in nats per token, of a model that knows the token counts of the training text.

    One is added to every count (Laplace smoothing), so that no token has the probability 0. Special tokens are left out.

    Args:
        train: int64 [V], occurrences of each vocabulary entry in the training text.
        held_out: int64 [V], those in the held-out text.
        special_ids: Ids of the special tokens.
    """
    train, held_out = (np.delete(counts, special_ids) for counts in (train, held_out))
    nats = np.log((train + 1).sum()) - np.log(train + 1)
    return math.fsum(held_out * nats) / max(int(held_out.sum()), 1)


@dataclass(frozen=True, eq=False)
class Corpus:
    """One split of a prepared corpus, memory-mapped.

    Token positions count through all shards. No document crosses a shard boundary.

    Attributes:
        document_starts: int64 [documents + 1], first token of each document, and the number of tokens.
        sentence_starts: int64 [sentences + 1], likewise for sentences. Every document start is also a sentence start.
        shard_starts: int64 [shards + 1], first token of each shard, and the number of tokens.
        tokens: Token ids of each shard, uint16 or uint32.
        word_starts: For each shard, bool per token: false for tokens that continue a word.
        languages: uint16 [sentences], language of each sentence, an index into `Shards.languages`. None if the corpus has
            no languages.
    """

    document_starts: np.ndarray
    sentence_starts: np.ndarray
    shard_starts: np.ndarray
    tokens: tuple[np.ndarray, ...]
    word_starts: tuple[np.ndarray, ...]
    languages: np.ndarray | None = None

    def slice(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Read tokens `start` to `stop` - 1 of a single document: input_ids int32 [n], word_starts bool [n]."""
        shard = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        start, stop = start - int(self.shard_starts[shard]), stop - int(self.shard_starts[shard])
        return self.tokens[shard][start:stop].astype(np.int32), np.array(self.word_starts[shard][start:stop])

    def language(self, token: int) -> int:
        """Return the language of a token: an index into `Shards.languages`. The corpus must have languages."""
        assert self.languages is not None
        return int(self.languages[np.searchsorted(self.sentence_starts, token, side="right") - 1])

    def frequencies(self, vocabulary_size: int, max_tokens: int = 50_000_000) -> np.ndarray:
        """Count each token id in the first shards, up to about `max_tokens` tokens: int64 [vocabulary_size]."""
        counts = np.zeros(vocabulary_size, np.int64)
        for shard, start in zip(self.tokens, self.shard_starts, strict=False):
            if start < max_tokens:
                counts += np.bincount(shard, minlength=vocabulary_size)
        return counts


@dataclass(frozen=True, eq=False)
class Shards:
    """A prepared corpus, opened by `open_shards`."""

    folder: Path
    tokenizer: Tokenizer
    train: Corpus
    eval: Corpus
    manifest: dict[str, Any]
    languages: tuple[str, ...] = ()
    """Names of the languages. () if the corpus has no languages."""

    @cached_property
    def unigram_loss(self) -> float:
        """The loss on the held-out text, in nats, of a unigram model of the training text, see `unigram_loss`."""
        train, held_out = (split.frequencies(self.tokenizer.size) for split in (self.train, self.eval))
        return unigram_loss(train, held_out, self.tokenizer.special_ids)

    def with_languages(self, names: tuple[str, ...]) -> Shards:
        """Return the shards with language ids that count in another list of names, which has all of `languages`."""
        if not self.languages:
            return self
        ids = np.array([names.index(name) for name in self.languages], np.uint16)
        train, evaluation = (replace(split, languages=ids[split.languages]) for split in (self.train, self.eval))
        return replace(self, train=train, eval=evaluation, languages=names)


def open_shards(folder: Path) -> Shards:
    """Open a folder that `prepare` wrote, and verify the size and sha256 of every file.

    Raises:
        UsageError: The folder holds no shards.
        UserError: A file is missing, truncated or altered, or the format is one of another version.
    """
    if not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} holds no token shards (no {MANIFEST}): create them with `bertie prepare`")
    manifest = storage.read_json(folder / MANIFEST)
    if (found := manifest.get("format")) != FORMAT:
        raise UserError(
            f"{folder / MANIFEST}: format {found!r}, but this version of bertie reads {FORMAT}: prepare again"
        )
    try:
        if manifest.get("sha256") not in (None, manifest_sha256(manifest)):
            raise UserError(f"{folder / MANIFEST} was altered (its content does not match its sha256): prepare again")
        storage.verify(folder, manifest["files"], "prepare again")
        require_listed(folder, manifest)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        if tokenizer.fingerprint != manifest["tokenizer"]["fingerprint"]:
            raise UserError(f"{folder / TOKENIZER} is not the tokenizer of these shards: prepare again")
        languages = read_languages(manifest)
        train, evaluation = (
            _open_split(folder / name, manifest["splits"][name], tokenizer.size, len(languages)) for name in SPLITS
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{folder / MANIFEST} is damaged ({error}): prepare again") from error
    return Shards(folder, tokenizer, train, evaluation, manifest, languages)


def _open_split(folder: Path, counts: dict[str, Any], vocabulary_size: int, languages: int) -> Corpus:
    if counts["shards"] < 1:
        raise ValueError(f"{counts['shards']} shards in {folder.name}")
    tokens, word_starts, sentences, documents, *more = (
        [np.load(folder / array_name(shard, kind), mmap_mode="r") for shard in range(counts["shards"])]
        for kind in array_kinds(languages > 0)
    )
    for parts in zip(tokens, word_starts, sentences, documents, strict=True):
        check_arrays(*parts, vocabulary_size)
    for found, shard_sentences in zip(*more, sentences, strict=True) if more else ():
        if found.dtype != np.uint16 or found.shape != (len(shard_sentences) - 1,) or found.max() >= languages:
            raise ValueError("languages and sentences do not match")
    shard_starts = np.cumsum([0, *(len(shard) for shard in tokens)], dtype=np.int64)
    return Corpus(
        document_starts=join_starts(documents, shard_starts),
        sentence_starts=join_starts(sentences, shard_starts),
        shard_starts=shard_starts,
        tokens=tuple(tokens),
        word_starts=tuple(word_starts),
        languages=np.concatenate(more[0]) if more else None,
    )
