"""Opens token shards (shard_format.py describes them), and has the baseline that counts words."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.base.errors import UsageError, UserError, nearest_path
from bertie.corpus.coverage import UnknownShare, unknown_share
from bertie.corpus.remote_shards import RemoteArrays, ShardCache, fetch_small, fetched, mapped, tokenizer_files
from bertie.corpus.shard_format import (
    FORMAT,
    MANIFEST,
    SPLITS,
    TOKENIZER,
    array_kinds,
    array_name,
    check_starts,
    check_tokens,
    check_word_starts,
    join_starts,
    manifest_sha256,
    read_languages,
    require_listed,
)
from bertie.corpus.token_corpus import Corpus
from bertie.files.file_cache import FileCache
from bertie.files.store import is_url
from bertie.tokenizers.tokenizer import Tokenizer


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
class Shards:
    """A prepared corpus, opened by `open_shards`."""

    place: str
    """The folder, or its URL without secrets."""
    fingerprint: str
    """SHA-256 of the manifest, which contains the hashes of all files."""
    tokenizer: Tokenizer
    train: Corpus
    eval: Corpus
    manifest: dict[str, Any]
    languages: tuple[str, ...] = ()
    """Names of the languages. () if the corpus has no languages."""
    cache: FileCache | None = None
    """Where the files are that come from an object store."""
    parts: tuple[Shards, ...] = ()
    """The shards that were joined to these, if several were."""

    @property
    def tokens(self) -> int:
        """Number of tokens of the training text."""
        return int(self.train.shard_starts[-1])

    @cached_property
    def by_name(self) -> dict[str, Shards]:
        """The parts by names for people, the last different parts of their paths; without parts, these shards as ""."""
        if not self.parts:
            return {"": self}
        paths = [Path(part.place).absolute().parts for part in self.parts]
        length = next(n for n in range(1, 100) if len({path[-n:] for path in paths}) == len(paths))
        return {"/".join(path[-length:]): part for path, part in zip(paths, self.parts, strict=True)}

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
        parts = tuple(part.with_languages(names) for part in self.parts)
        return replace(self, train=train, eval=evaluation, languages=names, parts=parts)

    def require_room(self, shuffle_tokens: int) -> None:
        """Raise UsageError if the cache cannot hold what a training reads at a time.

        Args:
            shuffle_tokens: Most tokens that are shuffled together; 0: all.
        """
        if self.cache is None:
            return
        total = int(self.train.shard_starts[-1])
        held_out, *read = (
            sum(entry["bytes"] for name, entry in self.cache.files.items() if name.startswith(f"{split}/"))
            for split in reversed(SPLITS)
        )
        needed = held_out + sum(read) * min(shuffle_tokens or total, total) // total
        if needed > (limit := self.cache.limit):
            raise UsageError(
                f"the cache {self.cache.root} may hold {limit / 1e9:.3g} GB, but {self.place} needs {needed / 1e9:.3g} GB: "
                "raise --cache-gb, or lower training.shuffle_tokens"
            )


def open_shards(data: str | Path | Sequence[str | Path], cache: ShardCache = ShardCache()) -> Shards:
    """Open a folder that `prepare` wrote, or several as one, and verify the size and sha256 of every file.

    Files of an object store are verified when they are fetched: tokens and word starts of a shard when they are first read,
    the others at once.

    Args:
        data: The folder, or the URL of its copy in an object store, such as "s3://bucket/shards". Or several folders.
        cache: Where to keep files of an object store.

    Raises:
        UsageError: The folder holds no shards, or several do not fit together.
        UserError: A file is missing, truncated or altered, or the format is one of another version.
    """
    folders = [data] if isinstance(data, str | Path) else list(data)
    return _joined([_opened(folder, cache) for folder in folders]) if len(folders) > 1 else _opened(folders[0], cache)


def _joined(parts: list[Shards]) -> Shards:
    first, counts = parts[0], Counter[str]()
    for part in parts[1:]:
        if part.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise UsageError(f"{part.place} has another tokenizer than {first.place}: prepare both with the same")
        if bool(part.languages) != bool(first.languages):
            raise UsageError(f"of {first.place} and {part.place}, only one has languages: give others")
    if len({part.fingerprint for part in parts}) < len(parts):
        raise UsageError(f"{' '.join(part.place for part in parts)}: two have the same text: name each once")
    if remote := [part.place for part in parts if part.cache]:
        raise UsageError(f"{remote[0]}: several data sets must be local folders: copy it, or give it alone")
    names = tuple(dict.fromkeys(name for part in parts for name in part.languages))
    parts = [part.with_languages(names) for part in parts]
    splits = {split: Counter[str]() for split in SPLITS}
    for part in parts:
        counts.update({name: part.manifest[name] for name in ("characters", "unknown_characters")})
        for split, sums in splits.items():
            sums.update({k: n for k, n in part.manifest["splits"][split].items() if isinstance(n, int)})
    fingerprint = hashlib.sha256(" ".join(part.fingerprint for part in parts).encode()).hexdigest()
    place = ", ".join(part.place for part in parts)
    train, evaluation = (Corpus.joined([getattr(part, split) for part in parts]) for split in SPLITS)
    manifest = {**counts, "splits": splits}
    return Shards(place, fingerprint, first.tokenizer, train, evaluation, manifest, names, parts=tuple(parts))


def _opened(data: str | Path, cache: ShardCache) -> Shards:
    if is_url(data):
        manifest, cached = cache.of(str(data))
        folder, place, fingerprint = cached.folder, cached.store.place, cached.key
    else:
        cache.require_unused(data)
        folder, place, cached = Path(data), str(data), None
        if not (folder / MANIFEST).is_file():
            remedy = nearest_path(folder, "create them with `bertie prepare`")
            raise UsageError(f"{folder} holds no token shards (no {MANIFEST}){remedy}")
        manifest, fingerprint = storage.read_json(folder / MANIFEST, None), storage.sha256(folder / MANIFEST)
    where = f"{place}/{MANIFEST}"
    if (version := manifest.get("format")) != FORMAT:
        raise UserError(f"{where}: format {version!r}, but this version of bertie reads {FORMAT}: prepare again")
    try:
        if manifest.get("sha256") not in (None, manifest_sha256(manifest)):
            raise UserError(f"{where} was altered (its content does not match its sha256): prepare again")
        if cached is None:
            storage.verify(folder, manifest["files"], "prepare again")
        require_listed(where, manifest)
        languages = read_languages(manifest)
        if cached is not None:
            kinds = array_kinds(bool(languages))[2:]
            fetch_small(cached, [name for split in SPLITS for kind in kinds for name in _names(manifest, split, kind)])
        tokenizer = Tokenizer.load(folder / TOKENIZER) if cached is None else _fetched_tokenizer(cached)
        if tokenizer.fingerprint != manifest["tokenizer"]["fingerprint"]:
            raise UserError(f"{place}/{TOKENIZER} is not the tokenizer of these shards: prepare again")
        train, evaluation = (
            _open_split(folder, manifest, name, tokenizer.size, len(languages), cached) for name in SPLITS
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{where} is damaged ({error}): prepare again") from error
    return Shards(place, fingerprint, tokenizer, train, evaluation, manifest, languages, cached)


def _fetched_tokenizer(cache: FileCache) -> Tokenizer:
    """Read the tokenizer of shards in an object store, again if another process has made room meanwhile."""
    names = tokenizer_files(cache)
    while True:
        paths = [cache.fetch(name, keep=names) for name in names]
        try:
            tokenizer = Tokenizer.load(cache.folder / TOKENIZER)
        except UserError:
            if all(path.exists() for path in paths):
                raise
            continue
        if all(path.exists() for path in paths):
            return tokenizer


def _names(manifest: dict[str, Any], split: str, kind: str) -> list[str]:
    """Return the paths of one array of all shards of a split."""
    return [f"{split}/{array_name(shard, kind)}" for shard in range(manifest["splits"][split]["shards"])]


def _open_split(
    folder: Path,
    manifest: dict[str, Any],
    split: str,
    vocabulary_size: int,
    languages: int,
    cached: FileCache | None,
) -> Corpus:
    if (shards := manifest["splits"][split]["shards"]) < 1:
        raise ValueError(f"{shards} shards in {split}")

    def load(name: str) -> np.ndarray:
        return fetched(cached, name) if cached is not None else mapped(folder / name)

    def large(kind: str, checks: Iterable[Callable[[np.ndarray], None]]) -> Sequence[np.ndarray]:
        of_name = dict(zip(_names(manifest, split, kind), checks, strict=True))
        if cached is not None:
            return RemoteArrays(cached, of_name)
        arrays = {name: load(name) for name in of_name}
        for name, check in of_name.items():
            check(arrays[name])
        return tuple(arrays.values())

    sentences, documents, *more = (
        [load(name) for name in _names(manifest, split, kind)] for kind in array_kinds(languages > 0)[2:]
    )
    for parts in zip(sentences, documents, strict=True):
        check_starts(*parts)
    counts = [int(starts[-1]) for starts in sentences]
    tokens = large("tokens", [partial(check_tokens, count=n, vocabulary_size=vocabulary_size) for n in counts])
    word_starts = large("word_starts", [partial(check_word_starts, count=n) for n in counts])
    for ids, starts in zip(*more, sentences, strict=True) if more else ():
        if ids.dtype != np.uint16 or ids.shape != (len(starts) - 1,) or ids.max() >= languages:
            raise ValueError("languages and sentences do not match")
    shard_starts = np.cumsum([0, *counts], dtype=np.int64)
    return Corpus(
        document_starts=join_starts(documents, shard_starts),
        sentence_starts=join_starts(sentences, shard_starts),
        shard_starts=shard_starts,
        tokens=tokens,
        word_starts=word_starts,
        languages=np.concatenate(more[0]) if more else None,
    )
