"""Opens token shards (shard_format.py describes them), and has the baseline that counts words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bertie import storage
from bertie.errors import UsageError, UserError
from bertie.text.coverage import UnknownShare, unknown_share
from bertie.text.shard_format import (
    FORMAT,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    array_kinds,
    array_name,
    check_arrays,
    join_starts,
    manifest_sha256,
    read_languages,
    require_listed,
)
from bertie.text.tokenizer import Tokenizer


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

    @cached_property
    def unknown_share(self) -> UnknownShare:
        """How much of the text became [UNK]."""
        return unknown_share(self.tokenizer, self.manifest)

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
    manifest = storage.read_json(folder / MANIFEST, None)
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
        # As ordinary arrays over the mapped files: slices of `np.memmap` take several times as long.
        [np.load(folder / array_name(shard, kind), mmap_mode="r").view(np.ndarray) for shard in range(counts["shards"])]
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
