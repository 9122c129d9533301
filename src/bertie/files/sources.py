"""Find and open text files: the folders, patterns, URLs and Hugging Face data sets that the command line names."""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, Literal, cast

from bertie.base import console, storage, untrusted
from bertie.base.errors import MachineError, UsageError, UserError, nearest_path
from bertie.files.compression import COMPRESSIONS, decompress
from bertie.files.store import in_words, is_url

Format = Literal["txt", "jsonl", "csv", "tsv", "parquet", "hub"]
FORMATS: tuple[Format, ...] = ("txt", "jsonl", "csv", "tsv", "parquet")
PLAIN = ("md", "rst")  # further names of .txt
SUFFIXES = tuple(
    f".{kind}{ending}" for kind in (*FORMATS, *PLAIN) for ending in COMPRESSIONS if kind != "parquet" or not ending
)
KNOWN = f"{', '.join(f'.{kind}' for kind in (*FORMATS, *PLAIN))}; all but .parquet also {', '.join(COMPRESSIONS[1:])}"
HUB = "hf:"
# Bytes on disk of the files that one worker reads together: a sixteenth of all, within these limits. It does not depend
# on the number of workers, because the end of a group is the end of a shard.
MIN_GROUP_BYTES, MAX_GROUP_BYTES = 4_000_000, 64_000_000
# Errors of the path that the user gave. Others, such as a failing disk, are errors of the machine and may pass.
PATH_ERRORS = (errno.ENOENT, errno.EISDIR, errno.EACCES, errno.ENOTDIR)


def split_suffix(path: str) -> tuple[str, str]:
    """Return the suffix of a file name and the suffix of its compression, in lower case: "A.jsonl.gz" → (".jsonl", ".gz").

    Markdown and reStructuredText are .txt.
    """
    name = path.lower()
    compression = next(ending for ending in reversed(COMPRESSIONS) if name.endswith(ending))
    suffix = os.path.splitext(name.removesuffix(compression))[1]  # noqa: PTH122 - a URL is no path
    return ".txt" if suffix[1:] in PLAIN else suffix, compression


@dataclass(frozen=True)
class Source:
    """One file, or one split of a data set.

    Attributes:
        path: A local path, a URL or hf:ID:CONFIG:SPLIT.
        name: The path below the folder that was named, or that a pattern begins with. It does not change when the folder is
            renamed.
        size: Bytes on disk; 0 if unknown.
        stamp: Changes when the content changes.
    """

    path: str
    name: str
    size: int
    stamp: str

    @property
    def format(self) -> Format:
        if self.path.startswith(HUB) and "://" not in self.path:
            return "hub"
        return cast(Format, split_suffix(self.path)[0][1:])

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file and yield its decompressed bytes.

        Raises:
            UserError: inside the block as well, if the file cannot be read; MachineError if the cause is not the path.
        """
        try:
            if not is_url(self.path):
                untrusted.require_content(Path(self.path), None)
            with _open_raw(self.path) as raw:
                yield decompress(split_suffix(self.path)[1], raw)
        except UserError:
            raise
        except OSError as error:
            kind = UserError if error.errno in PATH_ERRORS else MachineError
            raise kind(f"cannot read {self.path}: {error.strerror or error}") from error
        except Exception as error:
            if not is_url(self.path):
                raise
            raise interrupted(self.path, error) from None  # every store has its own exceptions


def interrupted(path: str, error: Exception) -> MachineError:
    """Return the error for a network connection that failed while `path` was read."""
    return MachineError(f"reading {path} failed: {in_words(error, path)}")


def find(texts: Iterable[str | Path]) -> list[Source]:
    """Return the files that paths, folders, patterns and URLs name.

    Args:
        texts: What the user named, in this order. The files of a folder are sorted; hidden ones are left out.

    Raises:
        UsageError: if nothing is named, nothing is found, or a file has no known format.
    """
    texts = as_list(texts)
    if not texts:
        raise UsageError(f"there is no text to read: name files ({KNOWN}) or folders of them, before the flags")
    return [source for text in texts for source in _find(str(text))]


def as_list(texts: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """Return what the user named as a list. One name is one text, not the list of its letters."""
    return [texts] if isinstance(texts, str | Path) else list(texts)


def _find(text: str) -> list[Source]:
    if is_url(text):
        return _find_remote(text)
    if text.startswith(HUB):
        if not 1 <= len(parts := text.removeprefix(HUB).split(":")) <= 3 or not parts[0]:
            raise UsageError(f"{text}: a data set is hf:ID, hf:ID:CONFIG or hf:ID:CONFIG:SPLIT")
        return [Source(text, text, 0, _hub_stamp(text))]
    if not text:
        raise UsageError("one of the texts has an empty name")
    path = Path(text)
    if path.is_dir():
        files = [item for item in _walk(path) if item.is_file() and not _is_hidden(item.relative_to(path))]
        known = sorted(item for item in files if _is_known(item.name))
        if not known:
            raise UsageError(f"{path}: no text in this folder (looked for {KNOWN})")
        if others := len(files) - len(known):
            console.info(f"{path}: {others:,} of {len(files):,} files are not read: their names end in none of {KNOWN}")
        return [_local(item, item.relative_to(path).as_posix()) for item in known]
    if not path.exists() and has_magic(text):
        if not (matching := sorted(_match_pattern(text))):
            raise UsageError(f"{text}: no file matches")
        root = Path(*takewhile(lambda part: not has_magic(part), path.parts))
        return [_local(Path(match), Path(match).relative_to(root).as_posix()) for match in matching]
    return [_local(path, path.name)]


def _local(path: Path, name: str) -> Source:
    if not path.is_file():
        raise UsageError(f"{path} is not a file" if path.exists() else f"no such file: {path}{nearest_path(path)}")
    if not _is_known(path.name):
        raise UsageError(f"{path}: cannot tell the format from the name: use one of {KNOWN}")
    if not storage.is_unicode(str(path)):
        raise UsageError(f"{str(path)!a}: the name is not UTF-8: rename the file")
    # Absolute, for workers on other machines, and to resume from another working directory.
    return Source(str(path.absolute()), name, *_size_and_stamp(path))


def _size_and_stamp(path: Path) -> tuple[int, str]:
    status = path.stat()
    return status.st_size, str(status.st_mtime_ns)


def _is_known(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _hub_stamp(text: str) -> str:
    """Return the hash of a data set's current files. Raises UserError."""
    import datasets

    name, config = [*text.removeprefix(HUB).split(":"), ""][:2]
    try:
        return str(datasets.load_dataset_builder(name, config or None).hash)
    except Exception as error:  # of the library, the hub or the network
        raise UserError(f"cannot open the data set {text}: {in_words(error, text)}") from error


def _find_remote(url: str) -> list[Source]:
    import fsspec

    try:
        system, path = fsspec.url_to_fs(url)
        scheme = url.partition("://")[0]
        if has_magic(url):
            items = sorted(system.glob(path))
        elif system.isdir(path):
            items = sorted(
                item for item in system.find(path) if _is_known(item) and not _is_hidden(Path(item.rpartition("/")[2]))
            )
        else:
            items = [path]
        infos = [system.info(item) for item in items]
    except FileNotFoundError:
        raise UsageError(f"no such file: {url}") from None  # a traceback would show the URL with its password
    except Exception as error:  # every store has its own exceptions
        raise UserError(f"cannot look up {url}: {in_words(error, url)}") from None
    if not items:
        raise UsageError(f"{url}: no text there (looked for {KNOWN})")
    sources = []
    for item, info in zip(items, infos, strict=True):
        if not _is_known(item):
            raise UsageError(f"{url}: cannot tell the format from the name: use one of {KNOWN}")
        stamp = next(
            (str(info[key]) for key in ("etag", "ETag", "mtime", "LastModified", "created") if key in info), ""
        )
        full = url if item == path else f"{scheme}://{item.removeprefix('/') if scheme != 'file' else item}"
        sources.append(Source(full, item.rpartition("/")[2], info.get("size") or 0, stamp))
    return sources


def _walk(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder. Raises OSError for a subfolder that may not be read, instead of leaving it out."""

    def refuse(error: OSError) -> None:
        raise error

    visited: set[str] = set()
    for parent, subfolders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in visited:  # a link to a folder that was already read
            subfolders.clear()
            continue
        visited.add(real)
        subfolders.sort()  # so that a folder with two names is always read under the same one
        yield from (Path(parent) / name for name in names)


def _match_pattern(pattern: str) -> Iterator[str]:
    """Yield the files that match *, ? and […] in the parts of a path, and ** for any folders. Cyclic links are safe."""
    if "**" not in pattern:
        yield from (match for match in glob(pattern) if not Path(match).is_dir())  # noqa: PTH207 - of any root
        return
    start = pattern[: pattern.index("**")].rpartition("/")[0]
    for base in [start] if not has_magic(start) else glob(start):  # noqa: PTH207
        rest = pattern[len(start) :].lstrip("/") if start else pattern
        regex = re.compile("/".join(map(_part_regex, rest.split("/"))).replace("(?:.*)/", "(?:.*/)?") + r"\Z")
        for path in _walk(Path(base or ".")):
            relative = path.relative_to(base or ".")
            if regex.match(relative.as_posix()) and not _is_hidden(relative) and not path.is_dir():
                yield str(path)


def _part_regex(part: str) -> str:
    """Return one part of a pattern as a regular expression."""
    if part == "**":
        return "(?:.*)"
    return fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")


def _is_hidden(path: Path) -> bool:
    """Return whether a part of the path is hidden: left by file systems and editors, or a folder that is still being written."""
    return any(part.startswith(".") for part in path.parts)


def require_outside(out: Path, texts: Iterable[str | Path]) -> None:
    """Raise a UsageError if `out` lies in a folder of text, since the next run would read the output as text."""
    for text in texts:
        if (
            str(text)
            and not is_url(text)
            and Path(text).is_dir()
            and out.resolve().is_relative_to(Path(text).resolve())
        ):
            raise UsageError(f"{out} is inside {text}, whose files are read as text: give an --out elsewhere")


def require_unchanged(source: Source) -> None:
    """Raise a UserError if a local file is not the one that `find` found."""
    if source.format != "hub" and "://" not in source.path:
        path = Path(source.path)
        if not path.is_file() or _size_and_stamp(path) != (source.size, source.stamp):
            raise UserError(f"{source.path} was changed while it was read: start again when it is complete")


def _open_raw(path: str) -> IO[bytes]:
    if not is_url(path):
        return open(path, "rb")
    import fsspec

    return cast(Any, fsspec.open(path, "rb")).open()


def megabytes(files: list[Source]) -> float:
    """Return the size of files on disk."""
    return sum(file.size for file in files) / 1e6


def groups(sources: list[Source]) -> list[list[Source]]:
    """Group neighboring files, so that a million small files are a few pieces of work."""
    limit = min(MAX_GROUP_BYTES, max(MIN_GROUP_BYTES, sum(source.size for source in sources) // 16))
    grouped: list[list[Source]] = []
    size = 0
    for source in sources:
        if not grouped or size + source.size > limit or source.format == "hub":
            grouped.append([])
            size = 0
        grouped[-1].append(source)
        size = size + source.size if source.format != "hub" else limit
    return grouped
