"""Token shards in an object store: small files are fetched into a cache at the start, token arrays when they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from bertie.base import storage
from bertie.base.config import NotNegative, ranges
from bertie.base.errors import UsageError, UserError
from bertie.base.threads import cache_folder
from bertie.base.untrusted import parse_json
from bertie.corpus.shard_format import MANIFEST, TOKENIZER
from bertie.files.file_cache import FileCache
from bertie.files.store import Store

REQUESTS = 8  # small files at a time
Check = Callable[[np.ndarray], None]


@dataclass(frozen=True)
class ShardCache:
    """Where this machine keeps the shards of an object store."""

    cache: Path | None = None
    """Folder for shards that --data names by a URL; without it, in the user's cache folder. The processes of a machine share
    it."""
    cache_gb: NotNegative = 0.0
    """Maximum size of --cache in gigabytes; the least recently read files go first; 0: half of its size plus the free
    space."""

    __post_init__ = ranges("")

    def require_unused(self, data: object) -> None:
        """Raise UsageError if a cache is given for shards that need none."""
        if self != ShardCache():
            raise UsageError(
                f"--cache and --cache-gb are for shards in an object store, but {data} is a folder: remove them"
            )

    def of(self, url: str) -> tuple[dict[str, Any], FileCache]:
        """Read the manifest of shards at a URL. Return it with the cache of their files, which has none of them yet.

        Raises:
            UserError: There are no shards, or they cannot be read.
        """
        store = Store(url)

        def read(content: bytes) -> tuple[Any, str]:
            return parse_json(content.decode()), hashlib.sha256(content).hexdigest()

        manifest, key = store.read_whole(MANIFEST, read)
        if not isinstance(manifest, dict):
            raise UserError(f"{store.place}/{MANIFEST} is damaged: it is not a JSON object")
        try:
            root = (self.cache or cache_folder() / "shards").expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(f"no home folder for the cache of {store.place}: give --cache") from error
        return manifest, FileCache(root, key, store, manifest.get("files", {}), self.cache_gb)


def fetch_small(cache: FileCache, arrays: Iterable[str]) -> None:
    """Fetch the tokenizer and some arrays.

    Raises:
        ValueError: The manifest lists files without a size or checksum.
        UserError: It lists a file outside of the folder, or a file cannot be fetched.
    """
    storage.require_inside(cache.store.place, cache.files, "prepare again")
    for name, entry in cache.files.items():
        if type(entry["bytes"]) is not int or entry["bytes"] < 0 or not isinstance(entry["sha256"], str):
            raise ValueError(f"{name} has no size or sha256")
    tokenizer = tokenizer_files(cache)
    with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(partial(cache.fetch, keep=tokenizer), (*tokenizer, *arrays)))


def tokenizer_files(cache: FileCache) -> list[str]:
    """Return the names of the tokenizer's files."""
    return [name for name in cache.files if name.startswith(f"{TOKENIZER}/")]


class RemoteArrays(Sequence[np.ndarray]):
    """One array of each shard, fetched and mapped when it is first read.

    A mapped file that was removed from the cache takes disk space until this process reads another one.
    """

    def __init__(self, cache: FileCache, checks: dict[str, Check]):
        """Create the arrays without fetching them.

        Args:
            cache: The cache.
            checks: The name of the file of each shard. Its value raises ValueError for an array that cannot be right.
        """
        self.cache, self.checks, self.names = cache, checks, tuple(checks)
        self.mapped: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, shard: Any) -> Any:
        name = self.names[shard]
        array = self.mapped.get(name)
        return self._map(name) if array is None else array

    def select(self, shards: Iterable[int]) -> RemoteArrays:
        """Return the arrays of some shards. They share what is mapped."""
        chosen = RemoteArrays(self.cache, self.checks)
        chosen.names, chosen.mapped = tuple(self.names[shard] for shard in shards), self.mapped
        return chosen

    def _map(self, name: str) -> np.ndarray:
        for gone in [key for key in list(self.mapped) if not (self.cache.folder / key).exists()]:
            self.mapped.pop(gone, None)
        return self.mapped.setdefault(name, fetched(self.cache, name, self.checks[name]))


def fetched(cache: FileCache, name: str, check: Check = lambda _: None) -> np.ndarray:
    """Fetch an .npy file and map it. Arguments and errors as of `FileCache.fetch`."""
    while True:
        path = cache.fetch(name, lambda path: check(mapped(path)))
        with suppress(FileNotFoundError):  # another process made room
            return mapped(path)


def mapped(path: Path) -> np.ndarray:
    """Map an .npy file. The result is an ordinary array: slices of `np.memmap` take several times as long.

    Raises:
        ValueError: The file is no such array.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    except OSError:
        raise
    except Exception as error:  # a header is parsed as Python: there are many
        raise ValueError(f"no array of NumPy: {error}") from error


def fetch_ahead(*several: RemoteArrays) -> None:
    """Fetch arrays of the same shards in the background, as far as the cache has room for them beside each other.

    A file that another process downloads is left to it. An error is not reported: the process that reads the file meets it.
    """
    names = list(dict.fromkeys(chain.from_iterable(zip(*(arrays.names for arrays in several), strict=True))))
    checks = {name: check for arrays in several for name, check in arrays.checks.items()}

    def fetch() -> None:
        with suppress(UserError):
            for name in names:
                several[0].cache.fetch(name, lambda path, of=name: checks[of](mapped(path)), keep=names, wait=False)

    Thread(target=fetch, daemon=True).start()
