"""TensorBoard files of a run, in addition to metrics.jsonl. A failure to write them does not stop the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertie import console
from bertie.errors import install


class TensorBoardLog:
    """Writes the event files in RUN/tensorboard."""

    def __init__(self, run: Path, step: int):
        """Begin after `step`. TensorBoard hides what an interrupted process wrote about later steps."""
        self._writer: Any = None
        with self._tried():  # TensorBoard may be missing or have an incompatible version
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, record: dict[str, Any]) -> None:
        """Add a record of metrics.jsonl: its floats become points of curves such as "train/loss"."""
        with self._tried():
            for name, value in record.items():
                if self._writer is not None and isinstance(value, float):
                    self._writer.add_scalar(f"{record['split']}/{name}", value, record["step"])

    def flush(self) -> None:
        with self._tried():
            if self._writer is not None:
                self._writer.flush()

    @contextmanager
    def _tried(self) -> Iterator[None]:
        """Give up after an error, such as that of a full disk."""
        try:
            yield
        except Exception as error:
            self._writer = None
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            console.warn(f"cannot write TensorBoard files: {reason} ({install('track')}); the run continues without")
