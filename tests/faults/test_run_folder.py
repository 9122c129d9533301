"""Run folders: what they refuse, warn about and survive."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from killing import STEPS, Nursery, differences, pretrain_command
from tests.conftest import cut, flip

EARLIER, STATE = "checkpoints/step-00000006", "checkpoints/step-00000009"


@pytest.fixture
def run(halfway: Path, tmp_path: Path) -> Path:
    """A copy of a run that was killed."""
    return Path(shutil.copytree(halfway, tmp_path / "run"))


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def error_line(text: str) -> str:
    """Return the only error line of the output, which must be the last line."""
    assert "Traceback" not in text
    [line] = [line for line in text.splitlines() if line.startswith("bertie:")]
    assert text.rstrip().endswith(line)
    return line


def test_finished_run_is_not_changed(nursery: Nursery, shards: Path, undisturbed: Path) -> None:
    before = listing(undisturbed)
    code, text = nursery.run(pretrain_command(shards, undisturbed))
    assert code == 0
    assert "is finished: nothing to do" in text
    assert listing(undisturbed) == before


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--training.learning-rate 0.001", "training.learning_rate is 0.002 there and 0.001 here"),
        ("--data {small_shards}", "{run} was made from other data"),
    ],
)
def test_run_of_another_configuration_or_other_data_is_refused(
    nursery: Nursery,
    shards: Path,
    small_shards: Path,
    undisturbed: Path,
    halfway: Path,
    finished: bool,
    flags: str,
    words: str,
) -> None:
    run = undisturbed if finished else halfway
    before = listing(run)
    code, text = nursery.run([*pretrain_command(shards, run), *flags.format(small_shards=small_shards).split()])
    assert code == 2
    assert words.format(run=run) in error_line(text)
    assert listing(run) == before


def test_another_number_of_threads_warns(nursery: Nursery, shards: Path, run: Path) -> None:
    code, text = nursery.run([*pretrain_command(shards, run), "--threads", "2"], ["die_after_step", STEPS])
    assert (code, "resuming" in text) == (-signal.SIGKILL, True)
    assert f"warning: {run} began with 1 thread and resumes with 2" in text


def test_resumed_run_keeps_its_number_of_threads(nursery: Nursery, shards: Path, undisturbed: Path, run: Path) -> None:
    code, text = nursery.run([*pretrain_command(shards, run), "--threads", "0"])
    assert code == 0
    assert "1 thread," in text
    assert "warning" not in text
    assert differences(run, undisturbed) == []


def test_a_second_process_is_refused(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bertie.cli import main

    run = tmp_path / "run"
    command = pretrain_command(shards, run)
    first = nursery.start_held(command, "hold_at", "pretrain", 2)
    assert main(command) == 2
    first.go_on()
    assert capsys.readouterr().err == f"bertie: another process is writing {run}\n"
    assert first.wait() == 0
    assert differences(run, undisturbed) == []


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip),
        ("config.json", Path.unlink),
        ("tokenizer.json", flip),
        ("manifest.json", cut),
        ("manifest.json", Path.unlink),
        ("training_state/optimizer.safetensors", cut),
        ("training_state/counters.json", Path.unlink),
    ],
)
def test_damaged_file_of_the_only_checkpoint_is_named(
    nursery: Nursery, shards: Path, run: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.rmtree(run / EARLIER)
    damage(run / STATE / name)
    before = listing(run)
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 1
    assert str(run / STATE if name == "manifest.json" else run / STATE / name) in error_line(text)  # it names others
    assert listing(run) == before


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip),
        pytest.param("training_state/counters.json", flip, marks=pytest.mark.slow),
        ("training_state/optimizer.safetensors", cut),  # as by a copy that was interrupted
        ("manifest.json", Path.unlink),
    ],
)
def test_run_resumes_before_a_damaged_checkpoint(
    nursery: Nursery,
    shards: Path,
    undisturbed: Path,
    run: Path,
    name: str,
    damage: Callable[[Path], None],
) -> None:
    damage(run / STATE / name)
    bad = listing(run / STATE)
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 0
    assert f"warning: {run / STATE / name}" in text
    assert "after step 6 of" in text
    aside = run / "checkpoints" / "damaged-step-00000009"
    assert listing(aside) == bad  # the damaged checkpoint is kept
    shutil.rmtree(aside)
    assert differences(run, undisturbed) == []


def test_run_resumes_from_the_previous_checkpoint_if_the_newest_is_deleted(
    nursery: Nursery, shards: Path, undisturbed: Path, run: Path
) -> None:
    shutil.rmtree(run / STATE)
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 0
    assert "after step 6 of" in text
    assert differences(run, undisturbed) == []


def test_copied_checkpoint_is_neither_resumed_nor_removed(nursery: Nursery, shards: Path, run: Path) -> None:
    aside = shutil.copytree(run / "checkpoints" / "step-00000006", run / "checkpoints" / "step-00000006-best")
    before = listing(aside)
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 0
    assert "after step 9 of" in text
    assert listing(aside) == before


@pytest.mark.parametrize(
    ("largest", "file"),
    [
        pytest.param(2_000, "metrics.jsonl", marks=pytest.mark.slow),
        (100_000, "model.safetensors"),
        pytest.param(300_000, "optimizer.safetensors", marks=pytest.mark.slow),
    ],
)
def test_full_disk_is_an_error_and_the_run_resumes(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path, largest: int, file: str
) -> None:
    """The disk is simulated by a limit on file sizes, which fails in the same way. It begins after step 6."""
    run = tmp_path / "run"
    command = pretrain_command(shards, run)
    code, text = nursery.run(command, ["disk_full_after_step", 6, largest])
    assert code == 1
    line = error_line(text)
    assert line.startswith(f"bertie: cannot write {run}")
    assert file in line
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000003", "step-00000006"]
    assert nursery.run(command)[0] == 0
    assert differences(run, undisturbed) == []


@pytest.mark.parametrize(
    ("name", "problem"), [("optimizer.safetensors", "is damaged"), ("counters.json", "extra is not known")]
)
def test_altered_training_state_with_a_matching_manifest_is_refused(
    nursery: Nursery, shards: Path, run: Path, name: str, problem: str
) -> None:
    shutil.rmtree(run / EARLIER)
    state = run / STATE / "training_state" / name
    counters = json.loads(state.with_name("counters.json").read_text())
    state.write_text(json.dumps({**counters, "extra": 1}))
    (run / STATE / "manifest.json").write_text('{"format": 1, "files": {}}')
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 1
    assert str(state) in error_line(text)
    assert problem in error_line(text)


def test_altered_metrics_are_refused(nursery: Nursery, shards: Path, run: Path) -> None:
    flip(run / "metrics.jsonl")
    before = listing(run)
    code, text = nursery.run(pretrain_command(shards, run))
    assert code == 1
    assert f"{run}/metrics.jsonl was altered" in error_line(text)
    assert listing(run) == before


def test_metrics_after_the_checkpoint_are_dropped_on_resume(
    nursery: Nursery, shards: Path, undisturbed: Path, run: Path
) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"split": "train", "step": 10, "lo')
    assert nursery.run(pretrain_command(shards, run))[0] == 0
    assert differences(run, undisturbed) == []
