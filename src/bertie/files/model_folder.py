"""The folder of a model: each of its small files is read and parsed once."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from bertie.base import storage, untrusted

KEPT = 1 << 20
"""Bytes of the largest file whose values stay in memory while a model is in use."""


class ModelFolder:
    """The files of a folder that describe a model, such as config.json. What was read is kept, and must not be changed.

    Whoever reads a model makes one and hands it down. `folder / name` is a path, for messages and for files with weights.
    """

    def __init__(self, path: Path):
        self.path = path
        self._contents: dict[str, bytes] = {}
        self._values: dict[str, Any] = {}
        self._inner: dict[str, ModelFolder] = {}

    @classmethod
    def of(cls, folder: str | Path | ModelFolder) -> ModelFolder:
        """Return a folder as it is, or the one at a path."""
        return folder if isinstance(folder, ModelFolder) else cls(Path(folder))

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __str__(self) -> str:
        return str(self.path)

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        return name in self._values or (self.path / name).is_file()

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises UsageError if it is missing, UserError if it cannot be read or is elsewhere."""
        inner, _, file = name.rpartition("/")
        if inner:
            return self.inside(inner).read(file)
        if name not in self._contents:
            untrusted.require_inside(self.path, [name])
            self._contents[name] = untrusted.read_bytes(self.path / name)
        return self._contents[name]

    def text(self, name: str) -> str:
        """Return a file in UTF-8, without a byte order mark. Raises UserError."""
        return untrusted.decode(self.path / name, self.read(name))

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file; {} if the file is missing. Raises UserError as `read`."""
        return untrusted.of_kind(self.path / name, self._parsed(name), dict) if self.has(name) else {}

    def json_list(self, name: str) -> list[Any]:
        """Return the array in a JSON file; [] if the file is missing. Raises UserError."""
        return untrusted.of_kind(self.path / name, self._parsed(name), list) if self.has(name) else []

    def _parsed(self, name: str) -> Any:
        if name not in self._values:
            self._values[name] = untrusted.parse(self.path / name, self.read(name))
        return self._values[name]

    def sha256(self, name: str) -> str:
        """Return the checksum of a file: of the bytes that were read, if it describes a model. Raises as `read`."""
        describes = name.endswith((".json", ".txt", ".model"))
        return hashlib.sha256(self.read(name)).hexdigest() if describes else storage.sha256(self.path / name)

    def inside(self, name: str) -> ModelFolder:
        """Return a folder in this one: it knows this one as `above`. name: "" for this one."""
        if (path := self.path / name) == self.path:
            return self
        if name not in self._inner:
            untrusted.require_inside(self.path, [name])
            self._inner[name] = ModelFolder(path)
            self._inner[name].above = self
        return self._inner[name]

    @cached_property
    def above(self) -> ModelFolder:
        """The folder that this one is in."""
        return ModelFolder(self.path.absolute().parent)

    def forget(self) -> None:
        """Drop the bytes of all files, which nothing reads again, and the values of large ones."""
        large = [name for name, content in self._contents.items() if len(content) > KEPT]
        self._values = {name: value for name, value in self._values.items() if name not in large}
        self._contents.clear()
        for folder in self._inner.values():
            folder.forget()
