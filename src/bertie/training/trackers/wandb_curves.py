"""Weights & Biases. Its own environment variables decide the rest: WANDB_PROJECT, WANDB_NAME, WANDB_MODE=offline, …"""

from __future__ import annotations

import secrets
from typing import Any

from bertie.base import runtime
from bertie.training.run_folder import RunFolder


class WandbCurves:
    """The curves of one run in Weights & Biases. A resumed run goes on with its run there."""

    def __init__(self, run: RunFolder, settings: dict[str, Any], step: int):  # noqa: ARG002
        import wandb  # pyright: ignore[reportMissingImports] - not among the packages of the tests

        self._run: Any = wandb.init(
            project=runtime.variable("WANDB_PROJECT", "bertie"),
            name=runtime.variable("WANDB_NAME", run.path.absolute().name),
            id=run.decide_once("wandb_run", lambda: secrets.token_hex(4)),
            dir=str(run.path),
            config=settings,
            resume="allow",
            settings=wandb.Settings(console="off"),  # stdout belongs to the results of the command
        )

    def write(self, step: int, values: dict[str, float]) -> None:
        # Steps go upwards only: it keeps what an interrupted process logged about steps that the run repeats.
        if step >= self._run.step:
            self._run.log(values, step=step)

    def flush(self) -> None:
        """Do nothing: a process of its own sends the points."""

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
