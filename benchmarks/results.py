"""What a long benchmark has measured so far, on disk: stopped, it goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertie import runtime, storage
from bertie.checkpoints.folder import locate
from bertie.errors import UsageError


class Results:
    """A JSON file: {"model": sha256 of its weights, "environment": …, "scores": {key: value}}.

    Errors: UsageError where the file holds results of another model.
    """

    def __init__(self, path: Path, model: str | Path, threads: int):
        self.path = path
        weights = storage.sha256(locate(model) / "model.safetensors")
        kept = json.loads(path.read_text()) if path.exists() else {"model": weights, "scores": {}}
        if kept["model"] != weights:
            raise UsageError(f"{path} holds results of another model: give another --out")
        self.scores: dict[str, Any] = kept["scores"]
        self._head = {"model": weights, "environment": runtime.environment(threads)}

    def measured(self, key: str, measure: Callable[[], Any]) -> Any:
        """The value of `key`, measured and written if it is not there yet."""
        if key not in self.scores:
            self.scores[key] = measure()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(self.path, {**self._head, "scores": self.scores})
        return self.scores[key]
