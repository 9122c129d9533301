"""Checks of files that somebody else wrote: where they are, how large, and in which encoding."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from pathlib import Path

from bertie.errors import UserError

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


def require_content(path: Path, largest: int | None = LARGEST) -> None:
    """Check that a file has at most `largest` bytes, and is not the pointer of Git LFS to it. Raises UserError, OSError."""
    if not path.is_file():  # reading it says why; a pipe can be read only once
        return
    if largest is not None and (size := path.stat().st_size) > largest:
        raise UserError(f"{path} has {size:,} bytes, more than any such file: at most {largest:,} are read")
    with open(path, "rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise UserError(f"{path} is a pointer of Git LFS, not the file: run `git lfs pull` in the folder")


def require_not_utf16(name: str, line: bytes) -> None:
    """Raise a UserError if the first line of a file that is read in another encoding is in UTF-16 or UTF-32."""
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        width = 32 if line.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)) else 16
        raise UserError(f"{name} is in UTF-{width}, as its first bytes say: convert the file to UTF-8 first")
    if len(line) > 3 and line.count(0) >= (len(line) - 1) // 2:  # half of the bytes of ASCII
        raise UserError(
            f"{name} looks like UTF-16 or UTF-32 without a byte order mark: convert the file to UTF-8 first"
        )
