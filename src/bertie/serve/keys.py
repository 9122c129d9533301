"""API keys: read from a file, kept as hashes, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from pathlib import Path

from bertie.base.errors import UsageError, UserError


@dataclass(frozen=True)
class ApiKeys:
    """The keys that may use the server. None of them is ever shown."""

    digests: tuple[bytes, ...] = field(default=(), repr=False)
    """SHA-256 of each key. Empty: no key is needed."""

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line. Empty lines, and lines that begin with #, are skipped.

        Raises:
            UsageError: The file is missing.
            UserError: It has no key, or one that a header cannot hold.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError as error:
            raise UsageError(f"--api-keys: no such file: {path}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as text: {type(error).__name__}") from error
        keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not keys:
            raise UserError(f"{path} has no key: write one key per line")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            raise UserError(
                f"{path}: a key has a space or a character outside ASCII: use letters, digits and punctuation"
            )
        return cls(tuple(_digest(key.encode()) for key in keys))

    def allow(self, authorization: str) -> bool:
        """Whether an Authorization header, "Bearer KEY", has one of the keys."""
        if not self.digests:
            return True
        scheme, _, key = authorization.partition(" ")
        digest = _digest(key.strip().encode())
        matches = [hmac.compare_digest(digest, known) for known in self.digests]  # all, so that time tells nothing
        return any(matches) and scheme.lower() == "bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
