"""Streaming decompression of .gz, .bz2, .xz and .zst files, with an error for every kind of damage."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from io import BufferedReader, RawIOBase
from typing import IO, Any

COMPRESSIONS = ("", ".gz", ".bz2", ".xz", ".zst")
READ_BYTES = 1 << 12  # read at a time: few, since a few bytes may decompress to megabytes
BUFFER_BYTES = 1 << 20
_DECOMPRESSORS: dict[str, tuple[Callable[[], Any], Any]] = {  # what makes a decompressor, and its errors
    ".gz": (partial(zlib.decompressobj, 16 + zlib.MAX_WBITS), zlib.error),
    ".bz2": (bz2.BZ2Decompressor, (OSError, ValueError)),
    ".xz": (lzma.LZMADecompressor, lzma.LZMAError),
}


def decompress(compression: str, raw: IO[bytes]) -> IO[bytes]:
    """Return a stream of decompressed bytes.

    Args:
        compression: One of COMPRESSIONS; with "", `raw` itself is returned.
        raw: The compressed bytes. A file of several frames, one after the other, is read as a whole. Zero bytes after a
            frame are padding, as on tapes.

    Raises:
        EOFError: while the stream is read, if the file is empty, truncated or damaged.
    """
    if not compression:
        return raw
    if compression == ".zst":
        import zstandard

        start_frame = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
        frames = _Frames(compression, raw, start_frame, zstandard.ZstdError, ())
    else:
        frames = _Frames(compression, raw, *_DECOMPRESSORS[compression], (BUFFER_BYTES,))
    return BufferedReader(frames, BUFFER_BYTES)


class _Frames(RawIOBase):
    """The content of consecutive frames (members, streams).

    The file objects of the libraries accept a file that is truncated, empty, or followed by damage as complete in one
    case or another.
    """

    def __init__(
        self, compression: str, raw: IO[bytes], start_frame: Callable[[], Any], damage: Any, limit: tuple[int, ...]
    ):
        """start_frame: makes a decompressor. damage: its errors. limit: its argument for the most bytes to return."""
        self.compression, self.raw = compression, raw
        self.start_frame, self.damage, self.limit = start_frame, damage, limit
        self.frame: Any = None
        self.started = False
        self.compressed, self.decompressed = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.decompressed:
            if not self._decompress():
                return 0
        count = min(len(buffer), len(self.decompressed))
        buffer[:count] = self.decompressed[:count]
        self.decompressed = self.decompressed[count:]
        return count

    def _decompress(self) -> bool:
        """Decompress a part; return False at the end of the last frame. Raises EOFError."""
        has_input = self.frame is not None and not getattr(self.frame, "needs_input", True)  # from the call before
        if not self.compressed and not has_input:
            self.compressed = self.raw.read(READ_BYTES)
            if not self.compressed and (self.frame or not self.started):
                raise self._error("it ends inside a frame" if self.started else "it is empty")
        if self.frame is None:
            if self.started and not self._skip_padding():
                return False
            self.frame, self.started = self.start_frame(), True
        try:
            self.decompressed = memoryview(self.frame.decompress(self.compressed, *self.limit))
        except self.damage as error:
            raise self._error(str(error)) from error
        self.compressed = self.frame.unused_data if self.frame.eof else getattr(self.frame, "unconsumed_tail", b"")
        if self.frame.eof:
            self.frame = None
        return True

    def _skip_padding(self) -> bool:
        """Skip the zero bytes after a frame; return False at the end of the file."""
        while not (rest := self.compressed.lstrip(b"\0")) and self.compressed:
            self.compressed = self.raw.read(READ_BYTES)
        self.compressed = rest
        return bool(rest)

    def _error(self, reason: str) -> EOFError:
        return EOFError(f"truncated, or not really {self.compression}: {reason}")
