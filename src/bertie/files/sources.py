"""What is named on the command line, to files: folders, patterns, URLs, data sets of the Hugging Face hub; and opening them."""

from __future__ import annotations

import bz2
import fnmatch
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any, Literal, cast

from bertie import console, storage
from bertie.errors import UsageError, UserError

Format = Literal["txt", "jsonl", "csv", "tsv", "parquet", "hub"]
FORMATS: tuple[Format, ...] = ("txt", "jsonl", "csv", "tsv", "parquet")
COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zst")
SUFFIXES = tuple(f".{kind}{packed}" for kind in FORMATS for packed in COMPRESSIONS if kind != "parquet" or not packed)
KNOWN = f"{', '.join(f'.{kind}' for kind in FORMATS)}; all but .parquet also {', '.join(COMPRESSIONS[1:])}"
HUB = "hf:"
# Bytes on disk of the files that one worker reads at a time: a sixteenth of all, between these two. Never by workers,
# since the end of a group is the end of a shard.
LEAST_GROUP, MOST_GROUP = 4_000_000, 64_000_000


@dataclass(frozen=True)
class Source:
    """One file, or one split of a data set.

    path: a local path, a URL or hf:ID:CONFIG:SPLIT. name: the same however the folder is called. stamp: another one
    when the content was changed.
    """

    path: str
    name: str
    size: int  # bytes on disk; 0 where nobody knows
    stamp: str

    @property
    def compression(self) -> str:
        """ "", ".gz" …"""
        return next(end for end in reversed(COMPRESSIONS) if self.path.lower().endswith(end))

    @property
    def format(self) -> Format:
        if self.path.startswith(HUB) and "://" not in self.path:
            return "hub"
        return cast(Format, self.path.lower().removesuffix(self.compression).rpartition(".")[2])

    @contextmanager
    def open(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """Its bytes, unpacked, and as they lie on disk."""
        with _raw(self.path) as raw:
            yield _unpacked(self.compression, raw), raw


def find(texts: Iterable[str | Path]) -> list[Source]:
    """The files that paths, folders, patterns and URLs stand for, in order; in folders sorted, none hidden.

    Errors: UsageError.
    """
    texts = list(texts)
    if not texts:
        raise UsageError(f"there is no text to read: name files ({KNOWN}) or folders of them, before the flags")
    return [source for text in texts for source in _find(str(text))]


def _find(text: str) -> list[Source]:
    if "://" in text:
        return _remote(text)
    if text.startswith(HUB):
        if not 1 <= len(parts := text.removeprefix(HUB).split(":")) <= 3 or not parts[0]:
            raise UsageError(f"{text}: a data set is hf:ID, hf:ID:CONFIG or hf:ID:CONFIG:SPLIT")
        return [Source(text, text, 0, _hub_stamp(text))]
    if not text:
        raise UsageError("one of the texts has an empty name")
    path = Path(text)
    if path.is_dir():
        files = [item for item in _inside(path) if item.is_file() and not _hidden(item.relative_to(path))]
        inside = sorted(item for item in files if _is_known(item.name))
        if not inside:
            raise UsageError(f"{path}: no text in this folder (looked for {KNOWN})")
        if other := len(files) - len(inside):
            console.info(f"{path}: {other:,} of {len(files):,} files are not read: their names end in none of {KNOWN}")
        return [_local(item, item.relative_to(path).as_posix()) for item in inside]
    if not path.exists() and has_magic(text):
        if not (matching := sorted(_matching(text))):
            raise UsageError(f"{text}: no file matches")
        return [_local(Path(found), Path(found).name) for found in matching]
    return [_local(path, path.name)]


def _local(path: Path, name: str) -> Source:
    if not path.is_file():
        raise UsageError(f"no such file: {path}" if not path.exists() else f"{path} is no file")
    if not _is_known(path.name):
        raise UsageError(f"{path}: cannot tell the format from the name: use one of {KNOWN}")
    if not storage.is_unicode(str(path)):
        raise UsageError(f"{str(path)!a}: the name is not UTF-8: rename it")
    # Absolute, for workers on other machines, and for who resumes from another folder.
    return Source(str(path.absolute()), name, *_stat(path))


def _stat(path: Path) -> tuple[int, str]:
    told = path.stat()
    return told.st_size, str(told.st_mtime_ns)


def _is_known(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _hub_stamp(text: str) -> str:
    """Of a data set's files as they are now. Errors: UserError."""
    import datasets

    name, config = [*text.removeprefix(HUB).split(":"), ""][:2]
    try:
        return str(datasets.load_dataset_builder(name, config or None).hash)
    except Exception as error:  # the library's own, the hub's, the network's
        raise UserError(f"cannot open the data set {text}: {' '.join(str(error).split())[:300]}") from error


def _remote(url: str) -> list[Source]:
    import fsspec

    try:
        system, path = fsspec.url_to_fs(url)
        scheme = url.partition("://")[0]
        if has_magic(url):
            found = sorted(system.glob(path))
        elif system.isdir(path):
            found = sorted(
                item for item in system.find(path) if _is_known(item) and not _hidden(Path(item.rpartition("/")[2]))
            )
        else:
            found = [path]
        infos = [system.info(item) for item in found]
    except FileNotFoundError as error:
        raise UsageError(f"no such file: {url}") from error
    except Exception as error:  # every store has its own
        raise UserError(f"cannot look up {url}: {' '.join(str(error).split())}") from error
    if not found:
        raise UsageError(f"{url}: no text there (looked for {KNOWN})")
    sources = []
    for item, info in zip(found, infos, strict=True):
        if not _is_known(item):
            raise UsageError(f"{url}: cannot tell the format from the name: use one of {KNOWN}")
        stamp = next(
            (str(info[key]) for key in ("etag", "ETag", "mtime", "LastModified", "created") if key in info), ""
        )
        full = url if item == path else f"{scheme}://{item.removeprefix('/') if scheme != 'file' else item}"
        sources.append(Source(full, item.rpartition("/")[2], info.get("size") or 0, stamp))
    return sources


def _inside(folder: Path) -> Iterator[Path]:
    """Everything below a folder. Errors: OSError for a sub-folder that may not be read, instead of leaving it out."""

    def refuse(error: OSError) -> None:
        raise error

    seen: set[str] = set()
    for parent, below, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to what was read
            below.clear()
            continue
        seen.add(real)
        below.sort()  # so that it is always the same of two names under which a folder is read
        yield from (Path(parent) / name for name in names)


def _matching(pattern: str) -> Iterator[str]:
    """Files, by * and ? and […] in the parts of a path, and ** for any folders; links in circles are no matter."""
    if "**" not in pattern:
        yield from (found for found in glob(pattern) if not Path(found).is_dir())  # noqa: PTH207 - of any root
        return
    start = pattern[: pattern.index("**")].rpartition("/")[0]
    for base in [start] if not has_magic(start) else glob(start):  # noqa: PTH207
        rest = pattern[len(start) :].lstrip("/") if start else pattern
        wanted = re.compile("/".join(map(_part, rest.split("/"))).replace("(?:.*)/", "(?:.*/)?") + r"\Z")
        for path in _inside(Path(base or ".")):
            inside = path.relative_to(base or ".")
            if wanted.match(inside.as_posix()) and not _hidden(inside) and not path.is_dir():
                yield str(path)


def _part(part: str) -> str:
    """One part of a pattern as a regular expression."""
    return (
        "(?:.*)"
        if part == "**"
        else fnmatch.translate(part).removeprefix("(?s:").removesuffix(r")\Z").replace(".*", "[^/]*")
    )


def _hidden(path: Path) -> bool:
    """What file systems and editors leave about, and folders that are still being written."""
    return any(part.startswith(".") for part in path.parts)


def require_outside(out: Path, texts: Iterable[str | Path]) -> None:
    """Errors: UsageError where `out` lies in a folder of text, so that the next reading would take it for text."""
    for text in texts:
        if "://" not in str(text) and Path(text).is_dir() and out.resolve().is_relative_to(Path(text).resolve()):
            raise UsageError(f"{out} lies in {text}, which is read for text: give an --out elsewhere")


def require_unchanged(source: Source) -> None:
    """Errors: UserError where a local file is not what `find` found."""
    if source.format != "hub" and "://" not in source.path:
        path = Path(source.path)
        if not path.is_file() or _stat(path) != (source.size, source.stamp):
            raise UserError(f"{source.path} was changed while it was read: begin anew when it is whole")


def _raw(path: str) -> IO[bytes]:
    if "://" not in path:
        return open(path, "rb")
    import fsspec

    return cast(Any, fsspec.open(path, "rb")).open()


def _unpacked(packed: str, raw: IO[bytes]) -> IO[bytes]:
    if not packed:
        return raw
    if packed == ".gz":
        begin, broken = partial(zlib.decompressobj, 16 + zlib.MAX_WBITS), zlib.error
    elif packed == ".bz2":
        begin, broken = bz2.BZ2Decompressor, (OSError, ValueError)
    elif packed == ".xz":
        begin, broken = lzma.LZMADecompressor, lzma.LZMAError
    else:
        import zstandard

        begin = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        broken = zstandard.ZstdError
    return BufferedReader(_Frames(raw, begin, broken, most=() if packed == ".zst" else (1 << 20,)), 1 << 20)


class _Frames(RawIOBase):
    """Frames (members, streams) one after the other, whole or not at all.

    The libraries' own files take what is cut, empty, or followed by damage, for whole in one case or another.
    """

    def __init__(self, raw: IO[bytes], begin: Callable[[], Any], broken: Any, most: tuple[int, ...]):
        self.raw, self.begin, self.broken, self.most = raw, begin, broken, most
        self.frame: Any = None
        self.begun = False
        self.packed, self.unpacked = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.unpacked:
            if not self._unpack():
                return 0
        count = min(len(buffer), len(self.unpacked))
        buffer[:count] = self.unpacked[:count]
        self.unpacked = self.unpacked[count:]
        return count

    def _unpack(self) -> bool:
        """Unpack a little; False at the end of the last frame. Errors: EOFError."""
        holds = self.frame is not None and not getattr(self.frame, "needs_input", True)  # what it was given before
        if not self.packed and not holds:
            self.packed = self.raw.read(1 << 12)  # little: a few bytes may unpack to megabytes
            if not self.packed and (self.frame or not self.begun):
                raise EOFError("it ends in the middle" if self.begun else "it is empty")
        if self.frame is None:
            self.packed = self.packed.lstrip(b"\0") if self.begun else self.packed  # padding, as on tapes
            if not self.packed:
                return bool(self.packed)
            self.frame, self.begun = self.begin(), True
        try:
            self.unpacked = memoryview(self.frame.decompress(self.packed, *self.most))
        except self.broken as error:
            raise EOFError(str(error)) from error
        self.packed = self.frame.unused_data if self.frame.eof else getattr(self.frame, "unconsumed_tail", b"")
        if self.frame.eof:
            self.frame = None
        return True


def groups(sources: list[Source]) -> list[list[Source]]:
    """Neighbours together, so that a million small files are a few pieces of work."""
    most = min(MOST_GROUP, max(LEAST_GROUP, sum(source.size for source in sources) // 16))
    grouped: list[list[Source]] = []
    size = 0
    for source in sources:
        if not grouped or size + source.size > most or source.format == "hub":
            grouped.append([])
            size = 0
        grouped[-1].append(source)
        size = size + source.size if source.format != "hub" else most
    return grouped
