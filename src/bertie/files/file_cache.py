"""A bounded cache on the local disk of files from an object store, shared by all processes of a machine.

A file gets its name when it is complete: its size and SHA-256 are those that the caller expects. Until then it is
`.NAME.part`, which already has the whole size, and is locked by the process that downloads it. A lock for the whole cache
guards what is removed to make room, and the creation of parts. The time of a file says when it was last used: if the cache is
full, the files go first that were used longest ago. A file that a process has mapped remains readable then.

The user names the folder of the cache, which may hold anything else. So only what is in folders `….bertie-cache` is counted
and removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from bertie.base import storage
from bertie.base.errors import MachineError, UserError
from bertie.files.store import Store

ENDING = ".bertie-cache"
LOCK = ".bertie-lock"
PART = ".part"


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
    """Maximum size of the cache in gigabytes (10^9 bytes); 0: half of its current size plus the free space of the
    disk."""

    @property
    def folder(self) -> Path:
        """The folder in the cache that has the files."""
        return self.root / f"{self.key}{ENDING}"

    @property
    def limit(self) -> int:
        """Most bytes of the cache."""
        if self.gigabytes:
            return int(self.gigabytes * 1e9)
        existing = next(path for path in (self.root, *self.root.absolute().parents) if path.exists())
        on_disk = sum(512 * status.st_blocks for status in self._used().values())
        return (on_disk + shutil.disk_usage(existing).free) // 2

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
            wait: Whether to wait for other downloads of the same file, or that take its room.

        Raises:
            UserError: The store has no such file, or it has other bytes, or the cache has no room for it.
            MachineError: The store fails, or the disk does.
        """
        path, size = self.folder / name, self.files[name]["bytes"]
        part = path.with_name(f".{path.name}{PART}")
        try:
            while not _is_used(path, size):
                file, locked = self._begin(name, part, {self.folder / kept for kept in (*keep, name)} | {part}, wait)
                with file:
                    if locked:
                        self._download(name, file, part, check)
                    if locked or not wait:
                        break
                    fcntl.flock(file, fcntl.LOCK_SH)  # until that download has ended
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = f"free some space, or give a smaller --cache-gb or another --cache than {self.root}"
            raise MachineError(f"cannot write {path}: {error.strerror or error}" + f": {advice}" * full) from error
        return path

    def _begin(self, name: str, part: Path, keep: set[Path], wait: bool) -> tuple[IO[bytes], bool]:
        """Create and lock a part, and make room for it.

        Returns:
            The part, and True. If another process downloads the file or has just done it, or downloads take the room: the
            part of one, and False.

        Raises:
            UserError: The files to keep have no room, whatever is removed; without `wait`, also if downloads take it.
        """
        path, size = self.folder / name, self.files[name]["bytes"]
        part.parent.mkdir(parents=True, exist_ok=True)
        with open(self.root / LOCK, "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            file, locked = _lock(part)
            if not locked:
                return file, False
            if _is_used(path, size):  # another process has completed it meanwhile
                part.unlink()
                return file, False
            file.truncate(size)
            sizes = {used: status.st_size for used, status in self._used().items()}
            limit, excess, busy = self.limit, sum(sizes.values()) - self.limit, None
            fits = sum(sizes[kept] for kept in keep & sizes.keys()) <= limit
            for other in sizes:
                if fits and excess > 0 and other not in keep:
                    opened, is_complete = _lock(other)
                    with opened:
                        if is_complete and other.exists():  # a part may have got its name meanwhile
                            other.unlink()
                            excess -= sizes[other]
                        else:
                            busy = other
            if excess <= 0:
                return file, True
            file.close()
            part.unlink()
            if busy is None or not wait:
                raise UserError(f"the cache {self.root} has no room within {limit / 1e9:.3g} GB: raise --cache-gb")
            return _lock(busy)[0], False

    def _download(self, name: str, file: IO[bytes], part: Path, check: Callable[[Path], None]) -> None:
        """Download a file, verify it, and give it its name."""
        where, expected, size = f"{self.store.place}/{name}", self.files[name], 0
        try:
            while size < expected["bytes"]:
                content = self.store.read(name, size, expected["bytes"])
                file.write(content)
                size += len(content)
            file.flush()
            if storage.sha256(part) != expected["sha256"]:
                raise UserError(f"{where} was altered (its sha256 differs from the manifest's): upload it again")
            try:
                check(part)
            except ValueError as error:
                raise UserError(f"{where} is damaged ({error}): prepare again") from error
            storage.fsync(part)
            os.replace(part, self.folder / name)
        except BaseException:
            part.unlink()
            raise
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # now, since a process that was forked meanwhile has the file open, too

    def _used(self) -> dict[Path, os.stat_result]:
        """Return the files of the cache. Those that were used longest ago come first."""
        used: dict[Path, os.stat_result] = {}
        for folder, _, names in chain.from_iterable(map(os.walk, self.root.glob(f"*{ENDING}"))):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    used[path] = path.stat()
        return dict(sorted(used.items(), key=lambda item: max(item[1].st_atime_ns, item[1].st_mtime_ns)))


def _is_used(path: Path, size: int) -> bool:
    """Return whether a file is complete, and note that it is used now."""
    with suppress(FileNotFoundError):
        if path.stat().st_size == size:
            os.utime(path, ns=(time.time_ns(), time.time_ns()))
            return True
    return False


def _lock(path: Path) -> tuple[IO[bytes], bool]:
    """Open a file, and lock it unless another process downloads it. Return it, and whether it is locked."""
    while True:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return file, False
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file, True
        file.close()  # a part got its name, or a file was removed, between the two calls
