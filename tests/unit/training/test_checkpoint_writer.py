"""Checkpoints in the background: one at a time, the same bytes, and a failed one is tried again."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import bertie
from bertie.batches.contiguous import DocSentences
from bertie.checkpoints.find import list_checkpoints
from bertie.errors import UserError
from bertie.model.config import TransformerConfig
from bertie.objectives import MaskedLM
from bertie.pretraining.recipe import PretrainConfig, PretrainTraining
from bertie.training import checkpoint_writer as rooms
from bertie.training import trainer
from bertie.training.checkpoint_writer import CheckpointWriter, checkpoint_writer
from bertie.training.optimizers import AdamW
from bertie.training.schedules import LinearDecay


@pytest.fixture(scope="module")
def config(tiny_config: TransformerConfig) -> PretrainConfig:
    size = replace(tiny_config, vocab_size=0, hidden_dropout_prob=0.1)
    times = {"steps": 6, "eval_every": 0, "checkpoint_every": 2, "keep_checkpoints": 9}
    training = PretrainTraining(batch_size=4, row_tokens=128, learning_rate=1e-3, precision="fp32", **times)
    return PretrainConfig(size, DocSentences(max_length=32), (MaskedLM(),), AdamW(), LinearDecay(), training)


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
    assert said.count("cannot write here: the disk is full; training goes on, and the checkpoint is tried again") == 2


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
