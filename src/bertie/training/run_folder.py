"""A run's folder: made, resumed, refused or found finished; its metrics."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import tomli_w

from bertie import config, console, runtime, storage
from bertie.checkpoints.folder import MANIFEST, write_manifest
from bertie.errors import UsageError, UserError

# Settings that change nothing of what is trained, but for which dropout falls where.
CHANGEABLE_ON_RESUME = tuple(
    f"training.{name}"
    for name in ("checkpoint_every", "checkpoint_minutes", "keep_checkpoints", "workers", "tensorboard", "micro_batch")
)


class RunFolder:
    """runs/NAME: config.toml, environment.json, metrics.jsonl, checkpoints/ and, once finished, the model itself.

    Opening it with the same resolved configuration again resumes; with another one it is refused. It is locked until
    its `with` block ends. Errors: UsageError for a folder that holds something else, or that is locked.
    """

    def __init__(self, path: Path, resolved: dict[str, Any], threads: int):
        self.path = path
        text = tomli_w.dumps(resolved)
        run_status(path, resolved)
        if not (path / "config.toml").is_file():
            with storage.atomic_folder(path) as folder:
                storage.write_atomic(folder / "config.toml", text)
        # A file of its own, writable: on NFS a lock needs that, and closing any other handle of the file would drop it.
        self._lock = open(path / ".lock", "a")  # noqa: SIM115 - held as long as the run, or the process
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if run_status(path, resolved) == "new":  # nothing was trained when it failed before: these settings count
                storage.write_atomic(path / "config.toml", text)
                storage.write_json(path / "environment.json", runtime.environment(threads))
        except BlockingIOError as error:
            self._lock.close()
            raise UsageError(f"another process is writing {path}") from error
        except UsageError:
            self._lock.close()
            raise
        storage.remove_leftovers(path)
        self._metrics: list[str] = []
        self._written = hashlib.sha256()  # of metrics.jsonl

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def finished(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def log(self, record: dict[str, Any]) -> None:
        """Keep a metrics record; `flush` writes what was kept."""
        self._metrics.append(json.dumps({k: _rounded(v) for k, v in record.items()}) + "\n")

    def flush(self) -> tuple[int, str]:
        """Append to metrics.jsonl, durably; returns the file's size in bytes and its sha256. Errors: UserError, a full disk."""
        path, content = self.path / "metrics.jsonl", "".join(self._metrics).encode()
        try:
            with open(path, "ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                self._metrics.clear()
                self._written.update(content)
                return file.tell(), self._written.hexdigest()
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error

    def cut_metrics(self, size: int, sha256: str) -> None:
        """Back to what stood there at the checkpoint. Errors: UserError if the file is shorter, or not what was written."""
        path, remedy = self.path / "metrics.jsonl", "restore it, or start over with another --out"
        path.touch()
        storage.fsync(self.path)
        if path.stat().st_size < size:
            raise UserError(f"{path} is shorter than its checkpoint says: {remedy}")
        with open(path, "rb") as file:
            self._written = hashlib.sha256(file.read(size))
        if size and self._written.hexdigest() != sha256:
            raise UserError(f"{path} was altered: it does not hold what the run wrote; {remedy}")
        os.truncate(path, size)

    def precision(self, asked: runtime.Precision) -> Literal["fp32", "bf16"]:
        """What the run computes in: `auto` is decided once, at the start, and kept."""
        decided = self._once("precision", lambda: runtime.resolve_precision(asked, runtime.device()))
        if decided not in ("fp32", "bf16"):
            raise UserError(f"{self.path / 'environment.json'} is damaged: precision is {decided!r}")
        return decided

    def micro_batch(self, decide: Callable[[], int]) -> int:
        """Rows of a forward pass: found out once, at the start, and kept."""
        rows = self._once("micro_batch", decide)
        if type(rows) is not int or rows < 1:
            raise UserError(f"{self.path / 'environment.json'} is damaged: micro_batch is {rows!r}")
        return rows

    def require_data(self, fingerprint: str) -> None:
        """Errors: UsageError where the run was made from something else than what this fingerprint stands for."""
        if self._once("data", lambda: fingerprint) != fingerprint:
            raise UsageError(
                f"{self.path} was made from other data or another model: give the same again, or another --out"
            )

    def _once(self, name: str, decide: Callable[[], Any]) -> Any:
        """What environment.json says of `name`: decided when first asked for, and kept."""
        environment = storage.read_json(self.path / "environment.json")
        if name not in environment:
            environment[name] = decide()
            storage.write_json(self.path / "environment.json", environment)
        return environment[name]

    def write_scores(self, scores: dict[str, float]) -> None:
        storage.write_json(self.path / "scores.json", scores)

    def scores(self) -> dict[str, float]:
        scores = storage.read_json(self.path / "scores.json")
        if not scores or not all(type(value) is float for value in scores.values()):
            raise UserError(f"{self.path / 'scores.json'} is damaged: it holds no scores")
        return scores

    def finish(self) -> None:
        """Everything is written: from now on the folder is a model, and opening it again finds it finished."""
        write_manifest(self.path)


def run_status(path: Path, resolved: dict[str, Any]) -> Literal["new", "begun", "finished"]:
    """Where a run of this resolved configuration stands. Errors: UsageError for a folder that holds anything else."""
    if not (path / "config.toml").is_file():
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise UsageError(f"{path} already exists and is no run of bertie's: give another --out")
        return "new"
    begun = [*path.glob("cells/*/metrics.jsonl"), *(path / name for name in (MANIFEST, "metrics.jsonl", "checkpoints"))]
    if not any(sign.exists() for sign in begun):
        return "new"
    old, new = config.read(path / "config.toml"), config.parse(tomli_w.dumps(resolved), "this configuration")
    if found := first_difference(old, new, CHANGEABLE_ON_RESUME):
        key, there, here = found
        longer = " (to train it longer: --init-from with it, --init-optimizer kept)" * (key == "training.steps")
        raise UsageError(
            f"{path} already holds another run: {key} is {there!r} there and {here!r} here; "
            f"give another --out{longer}, or the same settings to resume"
        )
    return "finished" if (path / MANIFEST).is_file() else "begun"


def first_difference(old: Any, new: Any, but: tuple[str, ...]) -> tuple[str, Any, Any] | None:
    """The first dotted key, but for some, in which two configurations differ, with its value in each."""
    first, second = flatten(old), flatten(new)
    keys = sorted((first.keys() | second.keys()) - set(but))
    return next(((key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)), None)


def read_metrics(run: Path, split: str) -> list[dict[str, Any]]:
    """The records of a run's metrics.jsonl of one split ("train" or "eval"). Errors: UserError if the file is damaged."""
    path = run / "metrics.jsonl"
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    for number, record in enumerate(records, start=1):
        if not _is_record(record):
            raise UserError(f"{path}:{number} is damaged: no record of a training")
    return [record for record in records if record["split"] == split]


def _is_record(record: Any) -> bool:
    if not isinstance(record, dict) or record.get("split") not in ("train", "eval"):
        return False
    places = [record.get(name) for name in ("step", "tokens", "seconds")]
    places += [record.get("tokens_per_second")] if record["split"] == "train" else []
    measures = [value for name, value in record.items() if name.endswith(("loss", "_accuracy"))]
    numbers = places + [value for value in measures if value is not None]
    return bool(measures) and all(isinstance(value, int | float) and abs(value) < 2**63 for value in numbers)


def _rounded(value: Any) -> Any:
    """Seven digits; null for what is no number, which JSON has no word for."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys: {"training.steps": 30, …}."""
    if not isinstance(values, dict):
        return {prefix: values}
    return {k: v for key, value in values.items() for k, v in flatten(value, f"{prefix}.{key}".lstrip(".")).items()}


def run_threads(run: Path, asked: int) -> int:
    """The threads a run was started with, so that it stays repeatable; warns where another number is asked for."""
    known = run / "environment.json"
    saved = storage.read_json(known).get("threads", 0) if known.is_file() else 0
    if type(saved) is not int or not 0 <= saved <= runtime.MOST_THREADS:
        raise UserError(f"{known} is damaged: threads is {saved!r}")
    if saved and asked and saved != asked:
        differ = "results will differ in rounding, and on a CPU in what dropout takes"
        console.warn(f"{run} ran with {saved} threads and goes on with {asked}: {differ}")
    return runtime.use_threads(asked or saved)
