"""TensorBoard: event files in RUN/tensorboard."""

from __future__ import annotations

from typing import Any

from bertie.training.run_folder import RunFolder


class TensorBoardCurves:
    """The curves of one run in TensorBoard."""

    def __init__(self, run: RunFolder, settings: dict[str, Any], step: int):  # noqa: ARG002
        """Begin after `step`. TensorBoard hides what an interrupted process wrote about later steps."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=step + 1)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self, failed: bool) -> None:  # noqa: ARG002 - TensorBoard has no status of a run
        self._writer.close()
