"""MLflow. Its own environment variables decide the rest: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, …"""

from __future__ import annotations

import time
from typing import Any

from bertie.base import runtime
from bertie.training.run_folder import RunFolder

MOST_METRICS, MOST_SETTINGS = 1000, 100  # in one call
LAST = "bertie.last_step"  # tag: the last step that was sent


class MLflowCurves:
    """The curves of one run in MLflow. A resumed run goes on with its run there."""

    def __init__(self, run: RunFolder, settings: dict[str, Any], step: int):
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports] - not among the packages of the tests
        from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

        self._client: Any = MlflowClient()
        self._metric, self._waiting = Metric, []
        is_new = "mlflow_run" not in run.environment

        def create() -> str:
            name = runtime.variable("MLFLOW_EXPERIMENT_NAME", "bertie")
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known else self._client.create_experiment(name)
            return self._client.create_run(experiment, run_name=run.path.absolute().name).info.run_id

        self._id = run.decide_once("mlflow_run", create)
        if is_new:
            params = [Param(name, str(value)[:6000]) for name, value in settings.items()]
            for part in range(0, len(params), MOST_SETTINGS):
                self._client.log_batch(self._id, params=params[part : part + MOST_SETTINGS])
        self._client.update_run(self._id, status="RUNNING")
        self._sent = int(self._client.get_run(self._id).data.tags.get(LAST, step))

    def write(self, step: int, values: dict[str, float]) -> None:
        # It would keep the points that an interrupted process sent about steps that the run repeats beside the new ones.
        if step > self._sent:
            now = int(1000 * time.time())
            self._waiting += [self._metric(name, value, now, step) for name, value in values.items()]
        if len(self._waiting) >= MOST_METRICS:
            self.flush()

    def flush(self) -> None:
        for part in range(0, len(self._waiting), MOST_METRICS):
            self._client.log_batch(self._id, metrics=self._waiting[part : part + MOST_METRICS])
        if self._waiting:
            self._client.set_tag(self._id, LAST, self._waiting[-1].step)
        self._waiting = []

    def close(self, failed: bool) -> None:
        self.flush()
        self._client.set_terminated(self._id, status="FAILED" if failed else "FINISHED")
