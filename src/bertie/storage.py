"""Files that are either whole or not there: temporary name, fsync, rename. Checksums. JSON with readable errors."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertie.errors import UsageError, UserError


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Force a file, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """The bits that new files do not get."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one and nothing between."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder beside `path`; when the block ends well it is synced and takes the name, else it is removed.

    `path` must not exist, or be an empty folder. A process killed inside the block leaves only hidden `.NAME.tmp-…`,
    which the next `atomic_folder` of that name, or `remove_leftovers`, takes away. Errors: UsageError where another
    process is at it.
    """
    if not path.name:
        raise UsageError(f"{str(path)!r} has no name: give the folder one")
    path = path.resolve()  # a link to a folder elsewhere stays a link
    temporary = path.with_name(f".{path.name}.tmp-new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                yield temporary
                for found in [*temporary.rglob("*"), temporary]:
                    fsync(found)
                os.rename(temporary, path)
                fsync(path.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Be the only process, also of other containers and hosts, that writes `path`: by a lock beside it.

    A file opened for writing: on NFS a lock needs that. It is taken away at the end, so whoever waited to open it looks again.
    """
    lock = path.with_name(f".{path.name}.tmp-lock")
    while True:
        with open(lock, "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                    continue
            except BlockingIOError as error:
                raise UsageError(f"another process is writing {path}") from error
            except FileNotFoundError:
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def remove_leftovers(folder: Path) -> None:
    """Take away what a killed process left half-written in `folder`."""
    for found in folder.glob(".*.tmp-*"):
        shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: half of a surrogate pair is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """NumPy arrays by name, as .npz."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomic(path, content.getvalue())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Errors: UsageError if there is no such file, UserError if it is not JSON, or another value."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return value


def require_fresh(path: Path, what: str) -> None:
    """Refuse to write into a folder that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} already exists: give {what} another --out, or remove it first")


def checksums(folder: Path, files: list[Path]) -> dict[str, dict[str, Any]]:
    """{"train/00000.tokens.npy": {"bytes": …, "sha256": …}, …}, relative to `folder`, in the order given."""
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }


def verify(folder: Path, files: dict[str, dict[str, Any]], remedy: str) -> None:
    """Compare files with what `checksums` wrote.

    Errors: UserError naming the first that differs, and the remedy.
    """
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing: {remedy}")
        if (found := path.stat().st_size) != expected["bytes"]:
            raise UserError(f"{path} has {found} bytes instead of {expected['bytes']}: it was cut or altered; {remedy}")
        if sha256(path) != expected["sha256"]:
            raise UserError(f"{path} was altered (its sha256 is not the manifest's): {remedy}")
