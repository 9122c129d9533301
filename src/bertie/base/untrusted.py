"""Read files that somebody else wrote: where they are, how large, in which encoding, and JSON that repeats no key."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertie.base.errors import UsageError, UserError, nearest_path

LARGEST = 128 << 20
"""Bytes of a file that describes a model; the largest, tokenizer.json of 260,000 entries, have 34 million."""
POINTER = b"version https://git-lfs.github.com/spec/"  # the start of what Git writes in place of a file without Git LFS


def require_inside(folder: Path, names: Iterable[str] | None = None) -> None:
    """Check that no file of a folder is a link out of it, except to the blobs of the hub's cache.

    Args:
        folder: A folder that somebody else may have written.
        names: The files, relative to it. None: all that are directly in it.

    Raises:
        UserError: A file is elsewhere. The message names it.
    """
    root = folder.resolve()
    homes = [root, *(above.parents[1] / "blobs" for above in (root, *root.parents) if above.parent.name == "snapshots")]
    if names is None:
        inside = folder.iterdir() if folder.is_dir() else ()
        names = sorted(path.name for path in inside if path.is_symlink() and path.is_file())
    for name in names:
        try:
            target = (folder / name).resolve()
        except ValueError:  # half of a surrogate pair, or NUL: no file has this name
            continue
        if not any(target.is_relative_to(home) for home in homes):
            if (folder / name).is_symlink():
                raise UserError(f"{folder / name} is a link to {target}, outside the folder: copy the file into it")
            raise UserError(f"{folder / name} is outside of the folder: copy the file into it")


def require_size(path: Path, largest: int | None = LARGEST) -> None:
    """Check that a file has at most `largest` bytes; None: any number. Raises UserError, OSError."""
    if largest is not None and path.is_file() and (size := path.stat().st_size) > largest:
        raise UserError(f"{path} is too large: it has {size:,} bytes, and bertie reads at most {largest:,}")


def require_no_pointer(path: Path, start: bytes) -> None:
    """Check that a file, which starts with these bytes, is not the pointer of Git LFS to it. Raises UserError."""
    if start.startswith(POINTER):
        raise UserError(f"{path} is a pointer of Git LFS, not the file: run `git lfs pull` in the folder")


def require_content(path: Path, largest: int | None = LARGEST) -> None:
    """Check a file that another library reads. Raises UserError, OSError."""
    if path.is_file():  # reading it says why; a pipe can be read only once
        require_size(path, largest)
        with open(path, "rb") as file:
            require_no_pointer(path, file.read(len(POINTER)))


def require_not_utf16(name: str, line: bytes) -> None:
    """Raise a UserError if the first line of a file that is read in another encoding is in UTF-16 or UTF-32."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        width = 32 if line.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) else 16
        raise UserError(f"{name} is in UTF-{width}, as its first bytes say: convert the file to UTF-8 first")
    if len(line) > 3 and line.count(0) >= (len(line) - 1) // 2:  # half of the bytes of ASCII
        raise UserError(f"{name} looks like UTF-16 or UTF-32: convert the file to UTF-8 first")


class RepeatedKeyError(ValueError):
    """An object of JSON has a key twice."""


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise RepeatedKeyError(f"the key {key[:40]!r} occurs twice in an object: keep one")
    return values


_decode = json.JSONDecoder(object_pairs_hook=_distinct).decode  # `json.loads` would build a decoder for every text


def parse_json(text: str) -> Any:
    """Parse JSON, as `json.loads`, which would take the last of several values under one key.

    Raises:
        RepeatedKeyError: An object has a key twice.
        ValueError: It is not JSON.
        RecursionError: It is nested too deeply.
    """
    return _decode(text)


def read_bytes(path: Path, largest: int | None = LARGEST) -> bytes:
    """Read a whole file. largest: how many bytes it may have; None: any number.

    Raises:
        UsageError: There is no such file.
        UserError: It cannot be read, is too large, or is a pointer of Git LFS.
    """
    try:
        require_size(path, largest)
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {path}{nearest_path(path)}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    require_no_pointer(path, content)
    return content


def decode(path: Path, content: bytes) -> str:
    """Return the text of a file in UTF-8, without a byte order mark. Raises UserError."""
    require_not_utf16(str(path), content[: 1 << 10])
    try:
        return content.decode("utf-8-sig")
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error


def parse(path: Path, content: bytes) -> Any:
    """Return the value in a JSON file. Raises UserError."""
    text = decode(path, content)
    try:
        return parse_json(text)
    except RepeatedKeyError as error:
        raise UserError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error


def of_kind(path: Path, value: Any, kind: type, expected: str = "") -> Any:
    """Return a value of a JSON file, if it is an object (dict) or an array (list) as wanted. Raises UserError."""
    if isinstance(value, kind):
        return value
    if not expected:
        raise UserError(f"{path} is damaged: it is not a JSON {'object' if kind is dict else 'array'}")
    raise UserError(f"{path} holds a JSON {'object' if isinstance(value, dict) else 'value'}, but must hold {expected}")
