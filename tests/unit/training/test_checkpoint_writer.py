"""Checkpoints in the background: one at a time, the same bytes, and a failed one is tried again."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests.unit.small_recipes import pretraining

import bertie
from bertie.base.errors import UserError
from bertie.batches.contiguous import DocSentences
from bertie.checkpoints.find import list_checkpoints
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.recipe import PretrainConfig
from bertie.training import checkpoint_writer as rooms
from bertie.training import trainer
from bertie.training.checkpoint_writer import CheckpointWriter, checkpoint_writer
from bertie.training.run_folder import RunFolder, read_metrics


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    size = replace(tiny_config, hidden_dropout_prob=0.1)
    training = {"steps": 6, "batch_size": 4, "learning_rate": 1e-3, "row_tokens": 128, "eval_every": 0}
    training |= {"checkpoint_every": 2, "keep_checkpoints": 9}
    return pretraining(size, DocSentences(max_length=32), (MaskedLM(),), **training)


def test_training_goes_on_while_a_checkpoint_is_written(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of step 2 begins only after step 4: without the background, the run would never reach it."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    bertie.pretrain(config, small_shards, alone, threads=1)
    reached, save, log = Event(), trainer.save_state, trainer.train_record

    def waiting(*args: Any) -> None:
        if args[5].step == 2:
            assert reached.wait(300)
        save(*args)

    def noting(*args: Any) -> dict[str, Any]:
        record = log(*args)
        if record["step"] == 4:
            reached.set()
        return record

    monkeypatch.setattr(trainer, "save_state", waiting)
    monkeypatch.setattr(trainer, "train_record", noting)
    bertie.pretrain(config, small_shards, run, threads=1)
    names = [path.name for path in list_checkpoints(alone)]
    assert names == [path.name for path in list_checkpoints(run)]
    assert "step-00000002" in names
    for name in names:
        for file in ("model.safetensors", "training_state/optimizer.safetensors"):
            assert (alone / "checkpoints" / name / file).read_bytes() == (
                run / "checkpoints" / name / file
            ).read_bytes()


def test_a_failed_write_is_said_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rooms, "RETRY_SECONDS", 0.0)
    tries, done = [], Event()

    def save() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise UserError("cannot write here: the disk is full")
        done.set()

    with checkpoint_writer() as writer:
        writer.write(save)
        assert done.wait(300)
        writer.complete()
        [seconds] = writer.poll()
    assert len(tries) == 3
    assert seconds >= 0
    said = capsys.readouterr().err
    assert (
        said.count("cannot write here: the disk is full; training continues, and will write the checkpoint again") == 2
    )


def test_a_newer_checkpoint_takes_the_place_of_a_failed_one() -> None:
    written: list[str] = []

    def fail() -> None:
        raise UserError("no room")

    writer = CheckpointWriter()
    writer.write(fail)
    writer.settle()
    writer.write(lambda: written.append("newer"))
    writer.complete()
    assert written == ["newer"]
    writer.write(fail)
    with pytest.raises(UserError, match="no room"):
        writer.complete()


def test_one_checkpoint_is_in_flight() -> None:
    running, most, release = [0], [0], Event()

    def save() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        assert release.wait(300)
        running[0] -= 1

    writer = CheckpointWriter()
    writer.write(save)
    release.set()
    for _ in range(3):
        writer.settle()
        writer.write(save)
    writer.complete()
    assert (most[0], len(writer.poll())) == (1, 4)


def test_other_errors_end_the_training(config: PretrainConfig, small_shards: Path, tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "save_state", broken)
        with pytest.raises(ZeroDivisionError):
            bertie.pretrain(config, small_shards, tmp_path / "run", threads=1)


def test_a_run_whose_last_checkpoint_cannot_be_written_fails(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, run = trainer.save_state, tmp_path / "run"

    def failing(*args: Any) -> None:
        if args[5].step > 2:
            raise UserError(f"cannot write {args[5].step}")
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_state", failing)
        with pytest.raises(UserError, match=re.escape(f"cannot write {config.training.steps}")):
            bertie.pretrain(config, small_shards, run, threads=1)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000002"]
    bertie.pretrain(config, small_shards, run, threads=1)


@pytest.mark.parametrize("recovers", [True, False])
def test_the_best_checkpoint_is_not_given_up_for_a_newer_one(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recovers: bool
) -> None:
    """With patience, the run ends with the best weights. Here those of step 2, whose first write fails."""
    run, times, save, log = tmp_path / "run", {"eval_every": 2, "patience": 9, "keep_checkpoints": 1}, *originals()
    with_patience = replace(config, training=replace(config.training, **times))

    def failing(*args: Any) -> None:
        if args[5].step == 2 and (not recovers or threading.current_thread() is not threading.main_thread()):
            raise UserError("cannot write 2")
        save(*args)

    evaluations = count(1)
    monkeypatch.setattr(trainer, "loss_metrics", lambda *args: log(*args) | {"loss": float(next(evaluations))})
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "save_state", failing)
        with nullcontext() if recovers else pytest.raises(UserError, match="cannot write 2"):
            bertie.pretrain(with_patience, small_shards, run, threads=1)
    if not recovers:
        assert list_checkpoints(run) == []
        evaluations = count(1)
        bertie.pretrain(with_patience, small_shards, run, threads=1)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000002", "step-00000006"]
    assert (run / "model.safetensors").read_bytes() == (
        run / "checkpoints" / "step-00000002" / "model.safetensors"
    ).read_bytes()


def originals() -> tuple[Any, Any]:
    return trainer.save_state, trainer.loss_metrics


def test_metrics_that_cannot_be_written_cost_a_checkpoint_only(
    config: PretrainConfig, small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, run, flush, failed = tmp_path / "whole", tmp_path / "run", RunFolder.flush, Event()

    def full(folder: RunFolder) -> tuple[int, str]:
        if not failed.is_set():
            failed.set()
            raise UserError("cannot write metrics.jsonl")
        return flush(folder)

    bertie.pretrain(config, small_shards, whole, threads=1)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "flush", full)
        bertie.pretrain(config, small_shards, run, threads=1)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000004", "step-00000006"]
    found, expected = (read_metrics(each, "train") for each in (run, whole))
    assert [record["loss"] for record in found] == [record["loss"] for record in expected]


def test_an_interrupt_leaves_no_try_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook goes on after it. The folder may belong to another run then."""
    tries, failed = [], Event()

    def save() -> None:
        tries.append(1)
        failed.set()
        raise UserError("no room")

    def interrupted() -> None:
        with checkpoint_writer() as writer:
            writer.write(save)
            assert failed.wait(300)
            threads.append(writer._thread)
            raise KeyboardInterrupt

    threads: list[Any] = []
    monkeypatch.setattr(rooms, "RETRY_SECONDS", 300.0)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    threads[0].join(200)
    assert not threads[0].is_alive()
    assert len(tries) == 1
