"""A small dev file lacks what makes the reading of the training file certain: it is read alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertie.checkpoints.read import read_checkpoint
from bertie.finetuning.data import load_task_data
from bertie.finetuning.recipe import FinetuneConfig, FinetuneTraining
from bertie.tasks import AnyTask, Classify, MultiLabel, Relate
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay

PAIR = {"tokens": ["ka", "du", "in", "ka"], "e1_start": 0, "e1_end": 1, "e2_start": 2, "e2_end": 3, "label": "x"}
CASES: list[tuple[AnyTask, list[Any], list[Any], Any]] = [
    (
        Classify(),
        [{"text": "ka", "label": label} for label in ("1", "0", "2", "-1")],
        [{"text": "du", "label": label} for label in ("1", "-1")],
        [("du", ("1",))],
    ),
    (
        MultiLabel(),
        [{"text": "ka", "labels": labels} for labels in ("a", "b", "c", "a,b", "b,c")],
        [{"text": "du", "labels": "a,c"}],
        [("du", ("a", "c"))],
    ),
    (Relate(), [PAIR, PAIR | {"e2_end": 2, "label": "y"}], [PAIR], [("ka du in ka", ("x",))]),
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("task", "train", "dev", "expected"), CASES, ids=lambda each: getattr(each, "kind", None))
def test_dev_is_read_as_training(
    task: AnyTask, train: list[Any], dev: list[Any], expected: Any, start: Path, tmp_path: Path
) -> None:
    config = FinetuneConfig(task, AdamW(), LinearDecay(), FinetuneTraining(epochs=1), max_length=24)
    files = write(tmp_path / "train.jsonl", train), write(tmp_path / "dev.jsonl", dev)
    found = load_task_data(config, *files, read_checkpoint(start))
    assert [(each.text, each.gold) for each in found.dev] == expected
    if isinstance(task, Relate):
        assert [each.second for each in found.dev] == [(6, 11)]
