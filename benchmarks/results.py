"""Result files of benchmarks: measurements with machine and settings. A stopped benchmark resumes from its file."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertie.base import runtime, storage
from bertie.base.errors import UsageError
from bertie.checkpoints.find import find_model_folder


def environment(threads: int) -> dict[str, Any]:
    """Describe machine, versions and command, for publication: file names in the command are without their folders."""
    found = runtime.environment(threads)
    found["versions"]["transformers"] = importlib.metadata.version("transformers")  # the peer of most benchmarks
    command = [word if word.startswith("benchmarks/") else re.sub(r"[^=]*/", "", word) for word in found["command"]]
    return {**found, "command": command}


class Results:
    """A JSON file: {"model": sha256 of its weights, "environments": […], "measured": {key: {"value", "setting", "environment"}}}.

    "environment" of a value is an index of "environments". Raises UsageError if the file has results of another model.
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
        """Return the value of `key`. If it is missing, compute it with `work` and write it.

        setting: a dataclass with everything that the value depends on. Raises UsageError if the value was measured with
        another setting.
        """
        measured, environments = self._kept["measured"], self._kept["environments"]
        setting_json = json.loads(json.dumps(asdict(setting)))  # tuples become lists, as in the file
        if key not in measured:
            value = work()
            if self._environment not in environments:
                environments.append(self._environment)
            place = environments.index(self._environment)
            measured[key] = {"value": value, "setting": setting_json, "environment": place}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            storage.write_json(self.path, self._kept)
        if measured[key]["setting"] != setting_json:
            raise UsageError(f"{self.path}: {key} was measured with {measured[key]['setting']}: give another --out")
        return measured[key]["value"]

    def __getitem__(self, key: str) -> Any:
        return self._kept["measured"][key]["value"]
