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
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertie.errors import MachineError, UsageError, UserError


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
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def atomic_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a hidden folder beside `path`; when the block ends well it is synced and takes the name, else it is removed.

    `path` must not exist, or be an empty folder; with `replace`, a folder that is there makes place at the end. A process
    killed inside the block leaves only hidden `.NAME.tmp-…`, which the next `atomic_folder` of that name, or
    `remove_leftovers`, takes away. Errors: UsageError where another process is at it.
    """
    if not path.name:
        raise UsageError(f"{str(path)!r} has no name: give the folder one")
    path = path.resolve()  # a link to a folder elsewhere stays a link
    temporary, before = (path.with_name(f".{path.name}.tmp-{name}") for name in ("new", "old"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir()
                yield temporary
                if replace and path.exists():
                    shutil.rmtree(before, ignore_errors=True)
                    os.rename(path, before)
                publish(temporary, path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
                shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a hidden name beside `path` to write to; when the block ends well the file is synced and takes its name, else
    it is removed.

    A process killed inside the block leaves only hidden `.NAME.tmp-…`, which the next `atomic_file` of that name takes
    away. Errors: UsageError where another process is at it.
    """
    if not path.name:
        raise UsageError(f"{str(path)!r} has no name: give the file one")
    path = path.resolve()  # a link to a file elsewhere stays a link
    temporary = path.with_name(f".{path.name}.tmp-new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            try:
                temporary.unlink(missing_ok=True)
                yield temporary
                fsync(temporary)
                os.replace(temporary, path)
                fsync(path.parent)
            finally:
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


def publish(folder: Path, path: Path) -> None:
    """Give a folder that is complete its name, once all of it is on disk."""
    for found in [*folder.rglob("*"), folder]:
        fsync(found)
    os.rename(folder, path)
    fsync(path.parent)


@contextmanager
def work_folder(path: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Yield a hidden folder beside `path` for work in many steps; it is kept where the work was cut short, else removed.

    The next `work_folder` of that name finds it as it was. Errors: UsageError where another process is at it; UserError
    where it holds work of another plan, with what is different.
    """
    if not path.name:
        raise UsageError(f"{str(path)!r} has no name: give the folder one")
    path = path.resolve()
    work = path.with_name(f".{path.name}.tmp-work")
    plan = json.loads(json.dumps(plan))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path):
            if (work / "plan.json").exists():
                _require_same(read_json(work / "plan.json"), plan, work)
            else:
                _discard(work)
                work.mkdir()
                write_json(work / "plan.json", plan)
            try:
                yield work
            except MachineError as error:
                raise MachineError(f"{error}; what is done is kept in {work}: the same command goes on") from error
            except UsageError:  # of how it was called
                raise
            except UserError:  # it would be the same the next time
                _discard(work)
                raise
            _discard(work)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror or error}") from error


def _discard(work: Path) -> None:
    """Take the folder away; what is left where that is cut short holds no plan, so nobody goes on from it."""
    (work / "plan.json").unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)


def discard_work(path: Path) -> None:
    """Take away the work folder of a `path` that was published, where whoever did it was killed right after."""
    _discard(path.resolve().with_name(f".{path.name}.tmp-work"))


def _require_same(before: dict[str, Any], plan: dict[str, Any], work: Path) -> None:
    for key in plan:
        if plan[key] != (then := before.get(key)):
            what = f"{key} (was {then!r}, is {plan[key]!r})"
            if isinstance(then, list) and isinstance(plan[key], list):
                pairs = [(old, new) for old, new in zip_longest(then, plan[key]) if old != new]
                what = f"{key}: {(pairs[0][1] or pairs[0][0])[0]}" + f" and {len(pairs) - 1} more" * (len(pairs) > 1)
            raise UserError(
                f"{work} holds the same work begun with something else, {what}: go on as it was begun, or remove it to begin anew"
            )


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


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Take away what a killed process left half-written in `folder`, or of one file in it."""
    for found in folder.glob(f".{name}.tmp-*"):
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


def write_array(path: Path, array: Any) -> None:
    """A NumPy array, as .npy."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    write_atomic(path, content.getvalue())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Errors: UsageError if there is no such file, UserError if it is not JSON, or another value."""
    value = _json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return value


def read_json_list(path: Path) -> list[Any]:
    """A JSON array. Errors: as `read_json`."""
    value = _json(path)
    if not isinstance(value, list):
        raise UserError(f"{path} is damaged: it holds no JSON array")
    return value


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}") from error
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


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
