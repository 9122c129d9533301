from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bertie.training.tensorboard_log import TensorBoardLog


def record(step: int, loss: float) -> dict[str, object]:
    return {"split": "train", "step": step, "loss": loss, "skipped": True}


@pytest.mark.filterwarnings("ignore")
def test_resumed_curves_hide_steps_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoardLog(tmp_path, 0)
    for step in range(1, 8):
        first.write(record(step, 10.0 - step))
    first.flush()
    resumed = TensorBoardLog(tmp_path, 5)
    for step in range(6, 9):
        resumed.write(record(step, 20.0 - step))
    resumed.flush()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert found.Tags()["scalars"] == ["train/loss"]
    assert [(event.step, event.value) for event in found.Scalars("train/loss")] == [
        *((step, 10.0 - step) for step in range(1, 6)),
        *((step, 20.0 - step) for step in range(6, 9)),
    ]


def test_missing_tensorboard_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    board = TensorBoardLog(tmp_path, 0)
    board.write(record(1, 2.0))
    board.flush()
    assert "pip install '.[track]' in a checkout of bertie" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_failing_writer_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board = TensorBoardLog(tmp_path, 0)

    class Full:
        def add_scalar(self, *_: object) -> None:
            raise OSError("No space left on device")

    board._writer = Full()
    for step in (1, 2):
        board.write(record(step, 2.0))
    board.flush()
    assert capsys.readouterr().err.count("No space left on device") == 1
