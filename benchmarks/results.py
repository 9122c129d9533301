"""What benchmarks write: where it was measured, and of long ones what they have so far: stopped, they go on where they were."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertie import runtime, storage
from bertie.checkpoints.folder import find_model_folder
from bertie.errors import UsageError


def environment(threads: int) -> dict[str, Any]:
    """Of the machine and the program, fit to be published: the command names files without the folders that they lie in."""
    found = runtime.environment(threads)
    found["versions"]["transformers"] = importlib.metadata.version("transformers")  # the peer of most
    command = [word if word.startswith("benchmarks/") else re.sub(r"[^=]*/", "", word) for word in found["command"]]
    return {**found, "command": command}


class Results:
    """A JSON file: {"model": sha256 of its weights, "environments": […], "measured": {key: {"value", "setting", "environment"}}}.

    environment: the number of the one, among the environments, in which it was measured. Errors: UsageError where the
    file holds results of another model.
    """

    def __init__(self, path: Path, model: str | Path, threads: int):
        self.path = path
        weights = storage.sha256(find_model_folder(model) / "model.safetensors")
        kept = json.loads(path.read_text()) if path.exists() else {"model": weights, "environments": [], "measured": {}}
        if kept["model"] != weights:
            raise UsageError(f"{path} holds results of another model: give another --out")
        self._kept: dict[str, Any] = kept
        self._environment = environment(threads)

    def measure(self, key: str, setting: Any, work: Callable[[], Any]) -> Any:
        """The value of `key`, from `work` and written if it is not there yet. setting: the dataclass it depends on.

        Errors: UsageError where it was measured with another setting.
        """
        measured, environments = self._kept["measured"], self._kept["environments"]
        told = json.loads(json.dumps(asdict(setting)))  # as it is read back: tuples are lists
        if key not in measured:
            value = work()
            if self._environment not in environments:
                environments.append(self._environment)
            place = environments.index(self._environment)
            measured[key] = {"value": value, "setting": told, "environment": place}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(self.path, self._kept)
        if measured[key]["setting"] != told:
            raise UsageError(f"{self.path}: {key} was measured with {measured[key]['setting']}: give another --out")
        return measured[key]["value"]

    def __getitem__(self, key: str) -> Any:
        return self._kept["measured"][key]["value"]
