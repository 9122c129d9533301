"""The run folder: configuration, environment, metrics and checkpoints of one run, and the rules for resuming it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w

from bertie.base import config, console, runtime, storage
from bertie.base.errors import UsageError, UserError
from bertie.checkpoints.find import list_checkpoints
from bertie.checkpoints.folder import MANIFEST
from bertie.training.distributed import SINGLE_PROCESS, Ranks

T = TypeVar("T")
# Settings that a resumed run may change. They do not affect the result, except that micro_batch selects other dropout
# masks.
FLUSH_SECONDS = 10.0  # between two writes of metrics.jsonl
CHANGEABLE_ON_RESUME = (
    *("training.checkpoint_every", "training.checkpoint_minutes", "training.keep_checkpoints", "training.workers"),
    *("training.trackers", "training.micro_batch", "card.license", "card.language", "card.datasets"),
    *("task.usual_separator", "task.usual_end", "task.usual_comments", "task.counts_from_0"),  # only in earlier runs
)
ENVIRONMENT, REPORT = "environment.json", "report.html"
TRAINED_ON = "trained_on"  # in environment.json: the files with the training examples
CHANGED = {  # what is wrong if the fingerprint of a resumed run has changed
    "data": "was made from other data or another model: give the same ones",
    "teacher": "began with other weights of objectives.distil.teacher: restore them",
}


class RunFolder:
    """The folder of one run: config.toml, environment.json, metrics.jsonl, checkpoints/ and, once finished, the model.

    Opening it creates the folder, or resumes the run in it if the configuration is the same. Use it as a context
    manager: the folder is locked until the `with` block ends.
    """

    def __init__(self, path: Path, resolved: dict[str, Any], threads: int):
        """Create or open the folder, and lock it.

        Args:
            path: The folder. It may be missing, empty, or hold a run of the same configuration.
            resolved: The configuration as TOML values, complete with defaults.
            threads: Number of CPU threads, recorded in environment.json.

        Raises:
            UsageError: If the folder holds another run or other files, or if another process has locked it.
        """
        self.path = path
        text = tomli_w.dumps(resolved)
        run_status(path, resolved)
        if not (path / "config.toml").is_file():
            with storage.atomic_folder(path) as folder:
                storage.write_atomic(folder / "config.toml", text)
        # The lock needs a separate file: NFS locks only files opened for writing, and closing any other handle of the
        # same file would release the lock.
        self._lock = open(path / ".lock", "a")  # noqa: SIM115 - held until the run or the process ends
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if run_status(path, resolved) == "new":  # a run that failed before its first step may change its settings
                storage.write_atomic(path / "config.toml", text)
                storage.write_json(path / ENVIRONMENT, runtime.environment(threads))
        except BlockingIOError as error:
            self._lock.close()
            raise UsageError(f"another process is writing {path}") from error
        except UsageError:
            self._lock.close()
            raise
        storage.remove_leftovers(path)
        self._metrics: list[str] = []
        self._flushed = time.monotonic()
        self._written = hashlib.sha256()  # of metrics.jsonl

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def finished(self) -> bool:
        return (self.path / MANIFEST).is_file()

    def log(self, record: dict[str, Any]) -> None:
        """Buffer a record for metrics.jsonl. `flush` and `show` write it, and this method now and then."""
        self._metrics.append(json.dumps({k: _json_number(v) for k, v in record.items()}) + "\n")
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.show()

    def show(self) -> None:
        """Let a user see the buffered records in metrics.jsonl. If they cannot be written, warn: a later call tries again."""
        self._flushed = time.monotonic()
        try:
            self.flush()
        except UserError as error:
            console.warn(f"{error}; training continues, and will write the log later", once=True)

    def flush(self) -> tuple[int, str]:
        """Append the buffered records to metrics.jsonl, and sync the file to disk.

        Returns:
            The size of metrics.jsonl in bytes, and its SHA-256.

        Raises:
            UserError: If the file cannot be written, for example on a full disk. It is as before, and the records stay.
        """
        path, content = self.path / "metrics.jsonl", "".join(self._metrics).encode()
        size = path.stat().st_size if path.is_file() else 0
        try:
            with open(path, "ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                self._metrics.clear()
                self._written.update(content)
                self._flushed = time.monotonic()
                return file.tell(), self._written.hexdigest()
        except OSError as error:
            with suppress(OSError):
                os.truncate(path, size)  # a part may be written
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error

    def truncate_metrics(self, size: int, sha256: str) -> None:
        """Truncate metrics.jsonl to its content at the time of a checkpoint.

        Args:
            size: The size in bytes that `flush` returned.
            sha256: The SHA-256 that `flush` returned.

        Raises:
            UserError: If the file is shorter, or if its first `size` bytes have changed.
        """
        path, remedy = self.path / "metrics.jsonl", "restore it, or start over with another --out"
        path.touch()
        storage.fsync(self.path)
        if path.stat().st_size < size:
            raise UserError(f"{path} is shorter than its checkpoint says: {remedy}")
        with open(path, "rb") as file:
            self._written = hashlib.sha256(file.read(size))
        if size and self._written.hexdigest() != sha256:
            raise UserError(f"{path} was altered: its content differs from what the run wrote; {remedy}")
        os.truncate(path, size)

    @property
    def environment(self) -> dict[str, Any]:
        """The content of environment.json."""
        return storage.read_json(self.path / ENVIRONMENT)

    def decide_once(self, name: str, decide: Callable[[], T]) -> T:
        """Return the value of `name` in environment.json. The first call decides and saves it."""
        environment = self.environment
        if name not in environment:
            environment[name] = decide()
            storage.write_json(self.path / ENVIRONMENT, environment)
        return environment[name]

    def append(self, name: str, value: Any) -> None:
        """Append a value to the list `name` in environment.json, unless it is the last one there."""
        before = self.environment.get(name, [])
        if before[-1:] != [value]:
            storage.write_json(self.path / ENVIRONMENT, self.environment | {name: [*before, value]})

    def require_same(self, what: Literal["data", "teacher"], fingerprint: str) -> None:
        """Raise UsageError if the run began with another fingerprint of its data or teacher. The first call saves it."""
        if self.decide_once(what, lambda: fingerprint) != fingerprint:
            raise UsageError(f"{self.path} {CHANGED[what]}, or give another --out")


def run_precision(run: RunFolder | None, asked: runtime.Precision, ranks: Ranks = SINGLE_PROCESS) -> runtime.Resolved:
    """Return the precision of a run, which rank 0 knows and its folder keeps. The first call resolves `auto`."""

    def resolve() -> runtime.Resolved:
        return runtime.resolve_precision(asked, runtime.device())

    precision: runtime.Resolved = ranks.broadcast(run.decide_once("precision", resolve) if run else resolve())
    return precision


def run_status(path: Path, resolved: dict[str, Any]) -> Literal["new", "begun", "finished"]:
    """Return the status of a run without opening it.

    Args:
        path: The run folder, which may be missing.
        resolved: The configuration as TOML values, complete with defaults.

    Returns:
        "new" before the first step, "begun" or "finished".

    Raises:
        UsageError: If the folder holds other files, or a run of another configuration.
    """
    if not (path / "config.toml").is_file():
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise UsageError(f"{path} already exists and is not a bertie run: give another --out")
        return "new"
    outputs = [path / MANIFEST, path / "checkpoints", path / "metrics.jsonl", *path.glob("cells/*/metrics.jsonl")]
    if not any(output.is_dir() or (output.exists() and output.stat().st_size) for output in outputs):
        return "new"
    old, new = config.read(path / "config.toml"), config.parse(tomli_w.dumps(resolved), "this configuration")
    if difference := first_difference(old, new, CHANGEABLE_ON_RESUME):
        key, there, here = difference
        longer = f" (to train longer, also --init-from {path} --init-optimizer keep)" * (key == "training.steps")
        raise UsageError(
            f"{path} already holds another run: {key} is {there!r} there and {here!r} here; "
            f"give another --out{longer}, or the same settings to resume"
        )
    return "finished" if (path / MANIFEST).is_file() else "begun"


def first_difference(old: Any, new: Any, ignored: tuple[str, ...]) -> tuple[str, Any, Any] | None:
    """Find the first dotted key, except for ignored ones, in which two configurations differ.

    Returns:
        The key and its values in `old` and `new` (None if missing), or None if there is no difference.
    """
    first, second = flatten(old), flatten(new)
    keys = sorted((first.keys() | second.keys()) - set(ignored))
    return next(((key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)), None)


def require_same_settings(resolved: dict[str, Any], ranks: Ranks, ignored: tuple[str, ...]) -> None:
    """Raise UsageError, on all ranks, if one has another configuration than rank 0, except for the ignored keys."""
    settings = {key: value for key, value in flatten(resolved).items() if key not in ignored}
    ranks.require_same(settings, "start every process with the same command")


def require_newest_on_rank_0(path: Path, ranks: Ranks) -> None:
    """Check that the machine of rank 0, which alone writes the run folder, has the newest state of the run.

    torchrun may give rank 0 to another machine after a restart. The run would begin again there, if its folder is not shared.

    Raises:
        UsageError: On all ranks, if the folder has a newer checkpoint, or a finished run, on another rank's machine.
    """
    steps = [int(folder.name[5:]) for folder in list_checkpoints(path)]
    first, *others = ranks.gather([(path / MANIFEST).is_file(), max(steps, default=0), str(path), platform.node()])
    for rank, (finished, step, there, host) in enumerate(others, start=1):
        if [finished, step] > first[:2]:
            what = "is finished" if finished else f"has a checkpoint of step {step}"
            raise UsageError(
                f"{there} {what} on {host} (rank {rank}), but on {first[3]} (rank 0), which writes the run, its newest "
                f"checkpoint is of step {first[1]}: give every machine the same folder, or copy the newest one to {first[3]}"
            )


def read_metrics(run: Path, split: str) -> list[dict[str, Any]]:
    """Read the records of one split, "train" or "eval", from a run's metrics.jsonl.

    Raises:
        UserError: If the file is missing or damaged.
    """
    path = run / "metrics.jsonl"
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    return [record for record in records if record["split"] == split]


def _json_number(value: Any) -> Any:
    """Round a float to seven significant digits; NaN and infinity, which JSON lacks, become None."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if math.isfinite(value) else None


def flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to dotted keys: {"training": {"steps": 30}} becomes {"training.steps": 30}.

    Tables in a list count from 0: "objectives.0.kind".
    """
    if isinstance(values, list) and values and all(isinstance(value, dict) for value in values):
        values = {str(number): value for number, value in enumerate(values)}
    if not isinstance(values, dict):
        return {prefix: values}
    return {k: v for key, value in values.items() for k, v in flatten(value, f"{prefix}.{key}".lstrip(".")).items()}


def run_threads(run: Path, asked: int) -> int:
    """Set the number of CPU threads for a run, and return it.

    Args:
        run: The run folder, which may be missing.
        asked: The requested number; 0: the number that the run began with, or all threads for a new run.

    Raises:
        UserError: If environment.json is not JSON.
        UsageError: If `asked` is not a valid number of threads.
    """
    environment = run / ENVIRONMENT
    saved = storage.read_json(environment).get("threads", 0) if environment.is_file() else 0
    if saved and asked and saved != asked:
        effect = "results will differ in rounding and, on a CPU, in the dropout masks"
        console.warn(f"{run} began with {console.plural(saved, 'thread')} and resumes with {asked}: {effect}")
    return runtime.use_threads(asked or saved)


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the last parts of paths, such as run folders: as few as tell them apart.

    Raises:
        UsageError: Two paths are the same.
    """
    parts = [Path(path).absolute().parts for path in paths]
    for path, named in zip(paths[1:], parts[1:], strict=True):
        if parts.count(named) > 1:
            raise UsageError(f"{path} is given twice: compare different ones")
    count = next(n for n in range(1, 1 + max(map(len, parts))) if len({part[-n:] for part in parts}) == len(parts))
    return [str(Path(*part[-count:])) for part in parts]
