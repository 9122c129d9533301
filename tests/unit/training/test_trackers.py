"""Trackers: TensorBoard itself, and stand-ins for the packages of the others, which need a network or a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bertie.training.run_folder import RunFolder
from bertie.training.trackers import Tracker, Trackers

SETTINGS = {"seed": 3, "training": {"steps": 8}}


def record(step: int, loss: float, split: str = "train") -> dict[str, Any]:
    return {"split": split, "step": step, "loss": loss, "skipped": True}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "mine", SETTINGS, 1) as folder:
        yield folder


class Wandb(ModuleType):
    """A stand-in for the package wandb: runs by their id, in memory. Steps go upwards only, as there."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: dict[str, Any] = {}
        self.asked: list[dict[str, Any]] = []
        self.Settings = lambda **values: values

    def init(self, **values: Any) -> Any:
        self.asked.append(values)
        return self.runs.setdefault(values["id"], WandbRun())


class WandbRun:
    def __init__(self) -> None:
        self.step, self.points, self.exit_codes = 0, [], []

    def log(self, values: dict[str, float], step: int) -> None:
        assert step >= self.step
        self.step = step
        self.points.append((step, values))

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)
        self.step += 1  # of a resumed run: the one after the last


class MLflow(ModuleType):
    """A stand-in for the package mlflow: its client, with runs in memory."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.params: dict[str, str] = {}
        self.points: list[tuple[str, float, int]] = []
        self.status: list[str] = []
        self.tags: dict[str, Any] = {}
        self.created: list[tuple[str, str]] = []
        self.MlflowClient = lambda: self
        self.entities = ModuleType("mlflow.entities")
        self.entities.Metric = lambda *values: SimpleNamespace(point=(*values[:2], values[3]), step=values[3])  # type: ignore
        self.entities.Param = lambda *values: values  # type: ignore

    def get_experiment_by_name(self, _: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return f"experiment {name}"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.created.append((experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    def get_run(self, run_id: str) -> Any:
        assert run_id == "r1"
        return SimpleNamespace(data=SimpleNamespace(tags=self.tags))

    def update_run(self, _: str, status: str) -> None:
        self.status.append(status)

    set_terminated = update_run

    def set_tag(self, _: str, name: str, value: Any) -> None:
        self.tags[name] = str(value)

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "r1"
        assert len(metrics) <= 1000
        self.points += [metric.point for metric in metrics]
        self.params |= dict(params)


def follow(name: Tracker, run: RunFolder, steps: range, start: float, interrupted: bool = False) -> None:
    """Report steps to a tracker, and an evaluation after the last one."""
    try:
        with Trackers((name,), run, steps[0] - 1) as trackers:
            for step in steps:
                trackers.write(record(step, start - step))
            trackers.write(record(steps[-1], 0.5, "eval"))
            trackers.flush()
            if interrupted:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        assert interrupted


@pytest.mark.filterwarnings("ignore")
def test_resumed_curves_of_tensorboard_hide_steps_after_the_checkpoint(run: RunFolder) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    follow("tensorboard", run, range(1, 8), 10.0, interrupted=True)
    follow("tensorboard", run, range(6, 9), 20.0)
    found = EventAccumulator(str(run.path / "tensorboard"))
    found.Reload()
    assert found.Tags()["scalars"] == ["train/loss", "eval/loss"]
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [
        *((step, 10.0 - step) for step in range(1, 6)),
        *((step, 20.0 - step) for step in range(6, 9)),
    ]


def test_a_resumed_run_goes_on_with_its_run_in_wandb(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    follow("wandb", run, range(1, 4), 10.0, interrupted=True)
    follow("wandb", run, range(3, 6), 10.0)  # step 3 is repeated: the checkpoint was before it
    [theirs] = wandb.runs.values()
    values = [{"train/loss": 10.0 - step} for step in range(1, 6)]
    ends = {"eval/loss": 0.5}
    assert theirs.points == [
        *zip((1, 2, 3), values, strict=False),
        (3, ends),
        (4, values[3]),
        (5, values[4]),
        (5, ends),
    ]
    assert theirs.exit_codes == [1, 0]
    first, second = wandb.asked
    assert (first["project"], first["name"], first["resume"]) == ("bertie", "mine", "allow")
    assert first["id"] == second["id"]
    assert first["config"] == {"seed": 3, "training.steps": 8}
    assert Path(first["dir"]) == run.path
    assert first["settings"] == {"console": "off"}


def test_a_resumed_run_goes_on_with_its_run_in_mlflow(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = MLflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    follow("mlflow", run, range(1, 4), 10.0, interrupted=True)
    follow("mlflow", run, range(3, 6), 10.0)
    assert mlflow.created == [("experiment bertie", "mine")]
    assert mlflow.params == {"seed": "3", "training.steps": "8"}
    assert [point for point in mlflow.points if point[0] == "train/loss"] == [
        ("train/loss", 10.0 - step, step) for step in range(1, 6)
    ]
    assert [point[2] for point in mlflow.points if point[0] == "eval/loss"] == [3, 5]
    assert mlflow.status == ["RUNNING", "FAILED", "RUNNING", "FINISHED"]


def test_many_points_are_sent_in_parts(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = MLflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "mlflow.entities", mlflow.entities)
    trackers = Trackers(("mlflow",), run, 0)
    for step in range(1, 1001):
        trackers.write(record(step, 1.0))
    assert len(mlflow.points) == 1000


@pytest.mark.parametrize(
    ("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_does_not_stop_the_run(
    name: Tracker, module: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    follow(name, run, range(1, 3), 1.0)
    said = capsys.readouterr().err
    assert said.count("warning") == 1
    assert f"cannot write to {name}" in said
    assert f"pip install '.[{name}]' in a checkout of bertie" in said


def test_a_failing_tracker_warns_once_and_the_others_go_on(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wandb, mlflow = Wandb(), MLflow()
    for name, module in (("wandb", wandb), ("mlflow", mlflow), ("mlflow.entities", mlflow.entities)):
        monkeypatch.setitem(sys.modules, name, module)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(WandbRun, "log", full)
    with Trackers(("wandb", "mlflow"), run, 0) as trackers:
        for step in (1, 2):
            trackers.write(record(step, 2.0))
    said = capsys.readouterr().err
    assert said.count("cannot write to wandb: No space left on device; the run continues without") == 1
    assert said.count("warning") == 1
    assert [point[2] for point in mlflow.points] == [1, 2]
