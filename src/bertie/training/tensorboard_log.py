"""A run's measures for TensorBoard, beside metrics.jsonl, which stays what counts. What goes wrong here stops no run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bertie import console


class TensorBoardLog:
    """RUN/tensorboard, written from `step` on: what an earlier process wrote of later steps is no longer shown."""

    def __init__(self, run: Path, step: int):
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        except Exception as error:  # not installed, of an unfit version, or a disk that takes nothing
            self._give_up(error)

    def write(self, record: dict[str, Any]) -> None:
        """One record of metrics.jsonl; numbers become curves named "train/loss", "eval/mlm_accuracy" …"""
        try:
            for name, value in record.items():
                if self._writer is not None and isinstance(value, float):
                    self._writer.add_scalar(f"{record['split']}/{name}", value, record["step"])
        except Exception as error:
            self._give_up(error)

    def flush(self) -> None:
        try:
            if self._writer is not None:
                self._writer.flush()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._writer = None
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        console.warn(f"nothing is written for TensorBoard: {reason} (pip install bertie[track]); the run goes on")
