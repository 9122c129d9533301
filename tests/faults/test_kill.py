"""A run that is killed at any moment and restarted until it is finished gives the same files, byte for byte."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killing import (
    STEPS,
    Nursery,
    Toll,
    content,
    differences,
    disturb,
    finetune_command,
    half_written,
    holds,
    in_save,
    in_training,
    pretrain_command,
    wait_for,
)


def finish(nursery: Nursery, command: list[str], run: Path) -> None:
    nursery.finish(command)
    assert not list(run.rglob("*.tmp-*"))


@pytest.mark.parametrize("kills", [4, pytest.param(22, marks=pytest.mark.slow)])
def test_pretraining_killed_often_gives_the_same_bytes(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path, kills: int
) -> None:
    rng, total = random.Random(0), Toll()
    while total.kills < kills:  # if a run finishes earlier, compare it and begin another one
        run = tmp_path / f"run{total.kills}"
        command = pretrain_command(shards, run)
        toll = disturb(nursery, command, run, rng, kills - total.kills)
        finish(nursery, command, run)
        assert differences(run, undisturbed) == []
        total.kills += toll.kills
        total.in_saves += toll.in_saves
    assert total.in_saves >= kills // 4


def test_killed_fine_tuning_gives_the_same_bytes(
    nursery: Nursery, examples: Path, undisturbed: Path, tmp_path: Path
) -> None:
    alone, run = tmp_path / "alone", tmp_path / "killed"
    finish(nursery, finetune_command(examples, undisturbed, alone), alone)
    command = finetune_command(examples, undisturbed, run)
    toll = disturb(nursery, command, run, random.Random(1), 4, steps=3)
    finish(nursery, command, run)
    assert differences(run, alone) == []
    assert "scores.json" in content(run)
    assert toll.kills >= 3


@pytest.mark.parametrize(
    ("begin", "what", "number"),
    [
        (0, "write_atomic .run.tmp config.toml", 1),  # the creation of the run folder
        (0, "rename .run.tmp", 1),
        (0, "write_atomic environment.json", 2),
        (9, "truncate", 1),  # metrics.jsonl on resume
        (9, "fsync", 1),  # metrics.jsonl before the checkpoint
        (9, "save_tensors model", 1),
        pytest.param(9, "save_tensors optimizer", 1, marks=pytest.mark.slow),
        (9, "write_atomic counters", 1),
        (9, "replace manifest", 1),
        (9, "rename /.step-", 1),  # a complete checkpoint is renamed to its final name
        # An old checkpoint is renamed before it is removed. A later save has to remove it after the kill.
        pytest.param(0, "rename /step-", 1, marks=pytest.mark.slow),
        (9, "unlink", 4),
        (9, "rmdir", 2),
        (9, "save_tensors /run/model", 1),  # the finished model
        pytest.param(9, "replace /run/.model", 1, marks=pytest.mark.slow),
        pytest.param(9, "write_atomic /run/config.json", 1, marks=pytest.mark.slow),
        pytest.param(9, "write_atomic /run/manifest", 1, marks=pytest.mark.slow),
    ],
)
def test_kill_before_every_kind_of_write(
    nursery: Nursery, shards: Path, undisturbed: Path, halfway: Path, tmp_path: Path, begin: int, what: str, number: int
) -> None:
    """begin: the step from which the run goes on."""
    run = shutil.copytree(halfway, tmp_path / "run") if begin else tmp_path / "run"
    command = pretrain_command(shards, run)
    nursery.die(command, "die_before", what, number)
    finish(nursery, command, run)
    assert differences(run, undisturbed) == []
    assert [path.name for path in tmp_path.iterdir()] == ["run"]  # a temporary folder is removed


def test_kill_at_epoch_ends_twice_in_a_row(nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["split"] == "train"]
    edges = [before["step"] for before, a in itertools.pairwise(train) if a["epoch"] > before["epoch"]]
    assert len(edges) >= 2
    alone, run = tmp_path / "alone", tmp_path / "killed"
    flags = ["--training.checkpoint-every", "1", "--training.keep-checkpoints", "1"]
    finish(nursery, [*pretrain_command(shards, alone, edges[1] + 1), *flags], alone)
    command = [*pretrain_command(shards, run, edges[1] + 1), *flags]
    for edge in edges[:2]:
        nursery.die(command, "die_after_step", edge)
        state = max((run / "checkpoints").iterdir())  # the folder also has the best checkpoint
        counters = json.loads((state / "training_state" / "counters.json").read_text())
        assert (counters["step"], counters["epoch_step"]) == (edge, 0)
        nursery.die(command, "die_before", "save_tensors", 1)
    finish(nursery, command, run)
    assert differences(run, alone) == []


@pytest.mark.parametrize("part", ["weights", "optimizer", "step", "position"])
def test_comparison_detects_a_part_that_is_not_restored(
    nursery: Nursery, shards: Path, undisturbed: Path, halfway: Path, tmp_path: Path, part: str
) -> None:
    """Resuming without one part of the state gives different files, so the comparisons in this file can fail."""
    run = shutil.copytree(halfway, tmp_path / "run")
    assert nursery.run(pretrain_command(shards, run), ["forget", part])[0] == 0
    different = differences(run, undisturbed)
    assert "model.safetensors" in different
    assert "metrics.jsonl" in different
    assert f"checkpoints/step-{STEPS:08d}/training_state/optimizer.safetensors" in different


def test_interrupt_at_any_moment_saves_and_resumes(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run, rng = tmp_path / "run", random.Random(2)
    command = pretrain_command(shards, run)
    for turn in range(2):  # in a step, and in the writing of a checkpoint
        victim = nursery.start_held(command, *(in_save(rng, torn=False) if turn % 2 else in_training(command, rng, 4)))
        assert victim.alive(), victim.text
        assert bool(half_written(run)) == bool(turn % 2)
        assert victim.kill(signal.SIGINT) == 130, victim.text
        lines = victim.text.splitlines()
        assert lines[-1] == "bertie: interrupted; run the same command again to resume"
        assert sum(line.startswith("bertie:") for line in lines) == 1
        assert "Traceback" not in victim.text
        assert not half_written(run)
    finish(nursery, command, run)
    assert differences(run, undisturbed) == []


def test_the_checkpoint_of_an_interrupt_takes_the_place_of_an_older_one(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = pretrain_command(shards, run)
    assert nursery.start_held(command, "hold_at", "pretrain", STEPS - 1).kill(signal.SIGTERM) == 130
    finish(nursery, command, run)
    kept = [path.name for path in (run / "checkpoints").iterdir()]
    assert f"step-{STEPS:08d}" in kept
    assert sorted(kept) != sorted(path.name for path in (undisturbed / "checkpoints").iterdir())
    assert differences(run, undisturbed) == []  # in all that both have


def test_bertie_command_is_interrupted_and_resumed(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Start `bertie pretrain` as a user would: interrupt it, and let the same command finish."""
    run, held = tmp_path / "run", tmp_path / "held"
    command = pretrain_command(shards, run)
    bertie = str(Path(sys.executable).with_name("bertie"))
    environment = holds(tmp_path / "python", held, "pretrain", 7)
    with subprocess.Popen([bertie, *command], stderr=subprocess.PIPE, text=True, env=environment) as process:
        wait_for(held, process)
        process.send_signal(signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert (run / "checkpoints/step-00000007").exists()
    code, text = nursery.run(command)
    assert code == 0, text
    assert "resuming" in text
    assert differences(run, undisturbed) == []
