"""Atomic files and folders, checksums, and JSON with readable errors.

A write goes to a temporary name, is synced to disk and then renamed, so a file or folder is either complete or absent.
Temporary names are hidden: `.NAME.tmp-…` beside the final name.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertie.base.errors import MachineError, UsageError, UserError
from bertie.base.untrusted import LARGEST, of_kind, parse, read_bytes


def sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Sync a file, or a folder's list of names, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """Return the permission bits that new files do not get."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically: a reader sees the old or the new content, also after a crash.

    Raises:
        MachineError: The file cannot be written. The old content remains.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        fsync(temporary)
        os.replace(temporary, path)
        fsync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def atomic_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Write a folder atomically.

    The block fills a hidden folder beside `path`. If the block succeeds, the folder is synced to disk and renamed to `path`.
    If the block raises, the folder is removed. A process that is killed inside the block leaves hidden `.NAME.tmp-…`
    folders, which the next `atomic_folder` of this name or `remove_leftovers` removes.

    Args:
        path: Final name. It must not exist, or be an empty folder.
        replace: If true, `path` may hold files. The new folder replaces it at the end of the block, after it is synced.

    Yields:
        The hidden folder.

    Raises:
        UsageError: Another process writes `path`.
        MachineError: The folder cannot be written.
    """
    with _exclusive(path, "folder") as final:
        temporary, previous = (final.with_name(f".{final.name}.tmp-{name}") for name in ("new", "old"))
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            yield temporary
            publish(temporary, final, previous if replace and final.exists() else None)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(previous, ignore_errors=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a large file atomically. `write_atomic` is simpler if the content is in memory.

    The block writes a hidden file beside `path`. If the block succeeds, the file is synced to disk and renamed to `path`.
    If the block raises, the file is removed. A process that is killed inside the block leaves hidden `.NAME.tmp-…` files,
    which the next `atomic_file` of this name removes.

    Yields:
        The name of the hidden file.

    Raises:
        UsageError: Another process writes `path`.
        MachineError: The file cannot be written.
    """
    with _exclusive(path, "file") as final:
        temporary = final.with_name(f".{final.name}.tmp-new")
        try:
            temporary.unlink(missing_ok=True)
            yield temporary
            fsync(temporary)
            os.replace(temporary, final)
            fsync(final.parent)
        finally:
            temporary.unlink(missing_ok=True)


def publish(folder: Path, path: Path, previous: Path | None = None) -> None:
    """Sync a complete folder to disk, then rename it to `path`. With `previous`, an earlier `path` gets that name first."""
    for entry in [*folder.rglob("*"), folder]:
        fsync(entry)
    if previous is not None:  # only now: an error of the disk must not cost the earlier folder
        shutil.rmtree(previous, ignore_errors=True)
        os.rename(path, previous)
    os.rename(folder, path)
    fsync(path.parent)


class OtherWorkError(UserError):
    """Unfinished work has other settings or inputs than the command."""


@contextmanager
def work_folder(path: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Keep the intermediate files of resumable work in a hidden folder beside `path`.

    The folder is removed when the block succeeds, and when it raises a `UserError`, because the same command would fail
    again. It remains if the work is interrupted, if the machine fails, or after a `UsageError`. The next `work_folder` of
    the same name then yields it with its files.

    Args:
        path: Final name of the result.
        plan: Settings and inputs of the work, as JSON values. Unfinished work resumes only if its plan is the same.

    Yields:
        The hidden folder.

    Raises:
        UsageError: Another process writes `path`.
        OtherWorkError: The folder holds unfinished work with another plan. The message names the difference.
        MachineError: The folder cannot be written.
    """
    plan = json.loads(json.dumps(plan))
    with _exclusive(path, "folder") as final:
        work = _work_of(final)
        if (work / "plan.json").exists():
            _require_same_plan(read_json(work / "plan.json", None), plan, work)
        else:
            _discard(work)
            work.mkdir()
            write_json(work / "plan.json", plan)
        try:
            yield work
        except MachineError as error:
            raise MachineError(f"{error}; the finished part is in {work}: repeat the command to resume") from error
        except UsageError:  # only the call is wrong, so a corrected call may use the folder
            raise
        except UserError:  # the same command would fail again
            _discard(work)
            raise
        _discard(work)


def _work_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-work")


def _discard(work: Path) -> None:
    """Remove a work folder, its plan first: work without a plan is never resumed, even if the removal is interrupted."""
    (work / "plan.json").unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)


def discard_work(path: Path) -> None:
    """Remove the work folder of `path`, which exists if a process was killed right after it published `path`."""
    _discard(_work_of(path.resolve()))


def _require_same_plan(saved: dict[str, Any], plan: dict[str, Any], work: Path) -> None:
    for key in plan:
        if plan[key] != (then := saved.get(key)):
            difference = f"{key} (was {then!r}, is {plan[key]!r})"
            if isinstance(then, list) and isinstance(plan[key], list):
                pairs = [(old, new) for old, new in zip_longest(then, plan[key]) if old != new]
                first = (pairs[0][1] or pairs[0][0])[0]
                difference = f"{key}: {first}" + f" and {len(pairs) - 1} more" * (len(pairs) > 1)
            raise OtherWorkError(
                f"{work} holds unfinished work with other settings or inputs, {difference}: "
                "use the same ones to resume, or remove the folder to start over"
            )


@contextmanager
def _exclusive(path: Path, what: str) -> Iterator[Path]:
    """Exclude other processes, also in other containers and on other hosts, from writing `path`, a folder or a file.

    The lock is a file beside `path`, opened for writing because a lock on NFS requires that. It is removed at the end. So a
    process that gets the lock checks that the file it opened still exists, and tries again if it does not.

    Yields:
        The final place. The folder above exists.

    Raises:
        UsageError: `path` has no name, or another process writes it.
        MachineError: The block raised an OSError.
    """
    if not path.name:
        raise UsageError(f"{str(path)!r} has no name: give the {what} one")
    path = path.resolve()  # a link to a place elsewhere stays a link
    lock = path.with_name(f".{path.name}.tmp-lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
                    yield path
                finally:
                    lock.unlink(missing_ok=True)
                return
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove the temporary files and folders of `name`, a pattern, that killed processes left in `folder`."""
    for leftover in folder.glob(f".{name}.tmp-*"):
        shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode the text. It cannot encode half of a surrogate pair."""
    return text.isascii() or text.encode(errors="ignore").decode() == text


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_json_lines(path: Path, rows: Iterable[Any], default: Any = None) -> None:
    """Write a line of JSON for each row. default: as of `json.dumps`."""
    write_atomic(path, "".join(json.dumps(row, ensure_ascii=False, default=default) + "\n" for row in rows))


def write_array(path: Path, array: Any) -> None:
    """Write a NumPy array to an .npy file, or a dict of arrays by name to an .npz file, atomically."""
    import numpy as np

    content = io.BytesIO()
    np.savez(content, **array) if isinstance(array, dict) else np.save(content, array, allow_pickle=False)
    write_atomic(path, content.getvalue())


def read_json(path: Path, largest: int | None = LARGEST, expected: str = "") -> dict[str, Any]:
    """Read a JSON object.

    Args:
        path: The file.
        largest: How many bytes it may have; None: any number, as of data.
        expected: What a user's file must hold, for the message; empty: bertie or another program wrote it.

    Raises:
        UsageError: There is no such file.
        UserError: The file does not hold a JSON object, has a key twice in one, or is too large.
    """
    return _load_json(path, dict, largest, expected)


def read_json_list(path: Path, expected: str = "") -> list[Any]:
    """Read a JSON array. Raises the same errors as `read_json`."""
    return _load_json(path, list, LARGEST, expected)


def _load_json(path: Path, kind: type, largest: int | None, expected: str) -> Any:
    return of_kind(path, parse(path, read_bytes(path, largest)), kind, expected)


def require_fresh(path: Path, what: str) -> None:
    """Check that `path`, to which a command is about to write `what`, does not exist or is an empty folder.

    Raises:
        UsageError: `path` exists and is not an empty folder.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} already exists: choose another place for {what}, or remove it first")


def checksums(folder: Path, files: list[Path]) -> dict[str, dict[str, Any]]:
    """Return sizes and checksums of files, by path relative to `folder`, in the given order.

    Example: {"train/00000.tokens.npy": {"bytes": …, "sha256": …}, …}
    """
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files
    }


def verify(
    folder: Path, files: dict[str, dict[str, Any]], remedy: str, checksum: Callable[[str], str] | None = None
) -> None:
    """Compare files with their sizes and checksums.

    Args:
        folder: Folder of the files.
        files: Sizes and checksums as `checksums` returns them.
        remedy: What the user can do if a file differs, for the message.
        checksum: Returns the checksum of a file of the folder. None: it is read.

    Raises:
        UserError: A file is missing, differs, or is not in the folder. The message names the first one.
    """
    require_inside(folder, files, remedy)
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path} is missing: {remedy}")
        if (size := path.stat().st_size) != expected["bytes"]:
            raise UserError(f"{path} has {size} bytes instead of {expected['bytes']}: {remedy}")
        if (checksum(name) if checksum else sha256(path)) != expected["sha256"]:
            raise UserError(f"{path} was altered (its sha256 differs from the manifest's): {remedy}")


def require_inside(place: object, names: Iterable[str], remedy: str) -> None:
    """Raise UserError if a manifest lists a file outside of its folder. place, remedy: for the message."""
    for name in names:
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise UserError(f"{place} lists {name}, a file outside of the folder: {remedy}")
