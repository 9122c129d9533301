"""A bounded cache on the local disk of files from an object store, shared by all processes of a machine.

A file gets its name when it is complete: its size and SHA-256 are those that the caller expects. Until then it is
`.NAME.SIZE.part`, locked by the process that downloads it. The next one continues it if that process ends. A complete file
has the modification time 0, so that a file that another program altered is noticed without reading it. Its access time is
that of its last use: if the cache is full, the files go first that were used longest ago. A file that a process has mapped
remains readable then.

The user names the folder of the cache, which may hold anything else. So only what is in folders `….bertie-cache` is counted
and removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

from bertie import storage
from bertie.errors import MachineError, UserError
from bertie.files.store import Store

PART = re.compile(r"^\..+\.(\d+)\.part$")
DOWNLOADS = 3
"""How often a whole file is downloaded if its bytes are not the expected ones."""
BUSY_SECONDS = 600
"""How long a file waits for room that downloads of other processes take."""
ENDING = ".bertie-cache"
LOCK = ".bertie-lock"


class CacheFullError(UserError):
    """What would have to be removed from the cache is needed."""


class Used(NamedTuple):
    """A file of the cache."""

    when: float
    path: Path
    size: int
    """Bytes; of an incomplete file, as if it were complete."""
    on_disk: int


class _BusyError(Exception):
    """Downloads in progress take the room."""


@dataclass(frozen=True, eq=False)
class FileCache:
    """The files of one folder in a store, as far as they are in the cache."""

    root: Path
    """The folder of the cache. It may hold the files of other stores, too, which count toward its limit."""
    key: str
    """Names the folder in the cache. It changes if the content of the files does."""
    store: Store
    files: dict[str, dict[str, Any]]
    """Size ("bytes") and "sha256" of each file, by its path relative to the URL of the store."""
    gigabytes: float = 0.0
    """Most gigabytes (10^9 bytes) of the cache; 0: half of what it has and the disk has free."""

    @property
    def folder(self) -> Path:
        """The folder in the cache that has the files."""
        return self.root / f"{self.key}{ENDING}"

    @property
    def limit(self) -> int:
        """Most bytes of the cache."""
        return self._limit(self._used())

    def _limit(self, used: list[Used]) -> int:
        if self.gigabytes:
            return int(self.gigabytes * 1e9)
        existing = next(path for path in (self.root, *self.root.absolute().parents) if path.exists())
        return (sum(each.on_disk for each in used) + shutil.disk_usage(existing).free) // 2

    def fetch(
        self,
        name: str,
        check: Callable[[Path], None] = lambda _: None,
        keep: Collection[str] = (),
        wait: bool = True,
    ) -> Path:
        """Return the path of a file in the cache, and download it if it is not there.

        Another process may remove the file at any time after this. With `wait` false, it may not be there yet.

        Args:
            name: Its path relative to the URL of the store.
            check: Raises ValueError if a complete file is not valid, before it gets its name.
            keep: Names of files of this folder that do not make room for this one.
            wait: Whether to wait for a process that downloads the same file, instead of leaving it to that process.

        Raises:
            CacheFullError: The cache has no room for the file.
            UserError: The store has no such file, or it has other bytes.
            MachineError: The store fails, or the disk does.
        """
        path, deadline = self.folder / name, time.monotonic() + BUSY_SECONDS
        try:
            while not self._is_ready(name):
                # Whoever waits for room has no part: if each of several had one, all would wait for each other.
                with suppress(_BusyError), self._part(name, wait) as part:
                    if part is None:
                        return path
                    self._make_room({str(self.folder / each) for each in (*keep, name)} | {part.name})
                    self._download(name, part)
                    self._complete(name, part, check)
                    continue
                if not wait or time.monotonic() > deadline:
                    raise self._full()
                time.sleep(0.1 + secrets.randbelow(200) / 1000)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = f"free some space, or give a smaller --cache-gb or another --cache than {self.root}"
            raise MachineError(f"cannot write {path}: {error.strerror or error}" + f": {advice}" * full) from error
        return path

    def _is_ready(self, name: str) -> bool:
        """Return whether a file is complete, and note that it is used now."""
        path = self.folder / name
        try:
            status = path.stat()
            if (status.st_size, status.st_mtime_ns) != (self.files[name]["bytes"], 0):
                return False
            os.utime(path, ns=(time.time_ns(), 0))
        except FileNotFoundError:
            return False
        return True

    @contextmanager
    def _part(self, name: str, wait: bool) -> Iterator[IO[bytes] | None]:
        """Open and lock the incomplete file of a name. Yield None if another process has it and `wait` is false."""
        path = self.folder / name
        part = path.with_name(f".{path.name}.{self.files[name]['bytes']}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with open(part, "ab") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield None
                    return
                if not _is_at(file, part):  # the process that had the lock has completed it, or removed it
                    continue
                if self._is_ready(name):
                    part.unlink()
                    yield None
                    return
                try:
                    yield file
                except BaseException as error:
                    # What arrived before a fault of the connection or a kill is continued.
                    kept = isinstance(error, MachineError | KeyboardInterrupt | _BusyError)
                    keeps = kept and os.fstat(file.fileno()).st_size
                    if not keeps and _is_at(file, part):
                        part.unlink()
                    raise
                return

    def _download(self, name: str, file: IO[bytes]) -> None:
        """Download what is missing of a file, and verify it."""
        part, expected = Path(file.name), self.files[name]
        (self.folder / name).unlink(missing_ok=True)  # another program altered it
        for _ in range(DOWNLOADS):
            size = os.fstat(file.fileno()).st_size
            while size < expected["bytes"]:
                content = self.store.read(name, size, expected["bytes"])
                file.write(content)
                file.flush()
                size += len(content)
            if storage.sha256(part) == expected["sha256"]:
                return
            file.truncate(0)
        raise UserError(
            f"{self.store.place}/{name} was altered (its sha256 differs from the manifest's): upload it again"
        )

    def _complete(self, name: str, file: IO[bytes], check: Callable[[Path], None]) -> None:
        """Give a file its name."""
        part = Path(file.name)
        try:
            check(part)
        except ValueError as error:
            raise UserError(f"{self.store.place}/{name} is damaged ({error}): prepare again") from error
        storage.fsync(part)
        os.utime(part, ns=(time.time_ns(), 0))
        if part.stat().st_mtime_ns:
            raise MachineError(
                f"{self.root} is on a disk that does not keep the time 0 of a file: give another --cache"
            )
        os.replace(part, self.folder / name)

    def _used(self) -> list[Used]:
        """Return the files of the cache. Those that were used longest ago come first."""
        found: list[Used] = []
        for folder, _, names in chain.from_iterable(map(os.walk, self.root.glob(f"*{ENDING}"))):
            for name in names:
                path = Path(folder, name)
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue
                size = int(part[1]) if (part := PART.search(name)) else status.st_size
                found.append(Used(max(status.st_atime, status.st_mtime), path, size, status.st_size))
        return sorted(found)

    def _make_room(self, keep: set[str]) -> None:
        """Remove files until the cache is within its limit.

        Raises:
            CacheFullError: The files to keep have no room, whatever is removed.
            _BusyError: They have none beside downloads in progress.
        """
        with open(self.root / LOCK, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            used = self._used()
            limit = self._limit(used)
            if sum(each.size for each in used if str(each.path) in keep) > limit:
                raise self._full()
            excess = sum(each.size for each in used) - limit
            for each in used:
                if excess > 0 and str(each.path) not in keep:
                    excess -= each.size * _remove(each.path)
        if excess > 0:
            raise _BusyError

    def _full(self) -> CacheFullError:
        return CacheFullError(f"the cache {self.root} has no room within {self.limit / 1e9:.3g} GB: raise --cache-gb")


def _remove(path: Path) -> bool:
    """Remove a file of the cache, unless a process downloads it. Return whether it is removed."""
    try:
        if PART.search(path.name):
            with open(path, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(file, path):
                    path.unlink()
        else:
            path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    return True


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Return whether an open file is the one that has this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
