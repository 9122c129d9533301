"""Trackers: programs that show the curves of runs, in addition to metrics.jsonl. None is required, and none stops a run.

`tensorboard_curves.py`, `wandb_curves.py` and `mlflow_curves.py` import the packages of these names when a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from bertie.base import config, console
from bertie.base.errors import first_line, install
from bertie.training.run_folder import RunFolder, flatten
from bertie.training.trackers.mlflow_curves import MLflowCurves
from bertie.training.trackers.tensorboard_curves import TensorBoardCurves
from bertie.training.trackers.wandb_curves import WandbCurves

Tracker = Literal["tensorboard", "wandb", "mlflow"]
RunCurves = TensorBoardCurves | WandbCurves | MLflowCurves
"""The curves of one run in a tracker. `write` adds a point to curves such as "train/loss", `flush` writes what is buffered, and
`close` ends the run, with `failed` if it was interrupted or has ended with an error. Any method may raise any error."""
CURVES: dict[Tracker, Callable[[RunFolder, dict[str, Any], int], RunCurves]] = {
    "tensorboard": TensorBoardCurves,
    "wandb": WandbCurves,
    "mlflow": MLflowCurves,
}


class Trackers:
    """The trackers of one run. One that fails is left out from then on, with a warning. Use it as a context manager."""

    def __init__(self, names: Sequence[Tracker], run: RunFolder | None, step: int):
        """Begin after `step`. run: None on ranks that write nothing."""
        self._open: dict[Tracker, RunCurves] = {}
        if run is None:
            return
        for name in names:
            with self._tried(name):  # its package may be missing, or its server
                settings = flatten(config.read(run.path / "config.toml"))
                self._open[name] = CURVES[name](run, settings, step)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for name, curves in list(self._open.items()):
            with self._tried(name):
                curves.close(kind is not None)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record of metrics.jsonl: its floats become points of curves such as "train/loss"."""
        if not self._open:
            return
        values = {f"{record['split']}/{name}": value for name, value in record.items() if isinstance(value, float)}
        for name, curves in list(self._open.items()):
            with self._tried(name):
                curves.write(record["step"], values)

    def flush(self) -> None:
        for name, curves in list(self._open.items()):
            with self._tried(name):
                curves.flush()

    @contextmanager
    def _tried(self, name: Tracker) -> Iterator[None]:
        """Give up a tracker after an error, such as a full disk."""
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            reason = first_line(error)
            remedy = f" ({install(name)})" if isinstance(error, ImportError) else ""
            console.warn(f"cannot write to {name}: {reason}{remedy}; the run continues without it")
