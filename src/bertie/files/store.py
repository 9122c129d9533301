"""Read parts of files in object stores and other places that fsspec opens, and try again if a request fails."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from bertie.base.errors import MachineError, UsageError, UserError, redacted

T = TypeVar("T")
CHUNK = 16_000_000
"""Bytes of a request: few enough to repeat, and enough that the time between two requests does not count."""
ATTEMPTS = 8
PAUSE = 0.5  # seconds before the second attempt; before each further one twice as long
LONGEST_PAUSE = 30.0


def is_url(place: object) -> bool:
    """Return whether a place is a URL, such as s3://bucket/folder, and no local path."""
    return "://" in str(place)


def in_words(error: Exception, url: str) -> str:
    """Return the message of an error of fsspec or of a store in one line, without the user name and password of the URL."""
    text = " ".join(str(error).split())
    # A store may name them without the rest, where `redacted` misses them. A name alone may be that of a container.
    if match := re.search(r"://([^/]*:[^/]*)@|^(?:https?|ftp)://([^/]*)@", url):
        for secret in filter(None, (match[1], match[2], (match[1] or "").partition(":")[2])):
            text = text.replace(secret, "…")
    return text[:300] or type(error).__name__


@dataclass(frozen=True)
class Store:
    """A folder in an object store. Requests that fail are repeated, with pauses that grow and differ at random."""

    url: str

    def __post_init__(self) -> None:
        if "?" in self.url or "#" in self.url:
            raise UsageError(f"{self.url} has a query, and shards need the URL of a folder: give it without one")

    @property
    def place(self) -> str:
        """The URL for people to read."""
        return redacted(self.url.rstrip("/"))

    def read(self, name: str, start: int, size: int) -> bytes:
        """Read a file from `start` on: at most 16 MB, or all the rest if the store knows no ranges.

        Args:
            name: The file, relative to the URL.
            start: First byte, less than `size`.
            size: Bytes of the whole file.

        Raises:
            UsageError: fsspec does not know such URLs.
            UserError: There is no such file, or it may not be read.
            MachineError: The store failed, or sent another number of bytes, at every attempt.
        """
        stop = min(start + CHUNK, size)

        def attempt(system: Any, path: str) -> bytes:
            content = system.cat_file(path, start=start, end=stop)
            if len(content) == size:
                return content[start:]
            if len(content) != stop - start:
                raise ValueError(
                    f"the store sent {len(content):,} of {stop - start:,} bytes, from byte {start:,} of {size:,} on"
                )
            return content

        return self._repeated(name, attempt)

    def read_whole(self, name: str, read: Callable[[bytes], T]) -> T:
        """Read a file of unknown size. `read` raises ValueError if its bytes are incomplete. Raises as `Store.read`."""
        return self._repeated(name, lambda system, path: read(system.cat_file(path)))

    def _repeated(self, name: str, attempt: Callable[[Any, str], T]) -> T:
        where, problem = f"{self.place}/{name}", ""
        for number in range(ATTEMPTS):
            if number:
                pause = min(PAUSE * 2 ** (number - 1), LONGEST_PAUSE)
                time.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))  # so that ranks do not ask all at once
            try:
                system, root = self._opened()
                return attempt(system, f"{root.rstrip('/')}/{name}")
            except UsageError:
                raise
            except FileNotFoundError:
                raise UserError(f"{where} is missing") from None  # a traceback would show the URL with its password
            except (PermissionError, ImportError) as error:
                raise UserError(f"cannot read {where}: {in_words(error, self.url)}") from None
            except Exception as error:  # every store has its own exceptions
                problem = in_words(error, self.url)
        raise MachineError(f"reading {where} failed {ATTEMPTS} times, at last because {problem}: repeat the command")

    def _opened(self) -> tuple[Any, str]:
        """Return the file system, and the folder in it."""
        import fsspec

        try:
            # fsspec keeps one connection per process. It is never handed to a forked process.
            return fsspec.url_to_fs(self.url)
        except ValueError as error:
            reason = in_words(error, self.url)
            raise UsageError(
                f"{self.place} is not the URL of a store ({reason}): give one such as s3://bucket/shards"
            ) from None
