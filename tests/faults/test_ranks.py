"""Data-parallel training in several processes, over gloo on the loopback interface."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from killing import (
    STEPS,
    Nursery,
    Victim,
    differences,
    finetune_command,
    holds,
    pretrain_command,
    wait_for,
    without_timing,
)
from rows import wrong_rows

STATE = "checkpoints/step-00000009"


def records(run: Path) -> list[dict[str, Any]]:
    return [without_timing(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_close(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare records up to rounding: sums are added in another order, and differences grow with every step."""
    assert [record["step"] for record in found] == [record["step"] for record in expected]
    for ours, theirs in zip(found, expected, strict=True):
        for name in ("split", "step", "epoch", "tokens", "lr"):
            assert ours.get(name) == theirs.get(name)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=2e-4)


@pytest.mark.parametrize("ranks", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 4))])
def test_number_of_ranks_changes_only_rounding(nursery: Nursery, shards: Path, tmp_path: Path, ranks: int) -> None:
    """With dropout, and 4 rows a step, which 3 ranks share as 1, 1 and 2. A second run with as many gives the same records.

    Each row is computed once, on one of the ranks, with the same tokens, labels and masks.
    """

    def command(name: str) -> list[str]:
        flags = ["--training.row-tokens", "128", "--training.micro-batch", "1"]
        return [*pretrain_command(shards, tmp_path / name), *flags]

    one, several = tmp_path / "rows of one", tmp_path / "rows of several"
    assert nursery.run(command("alone"), ["record_rows", str(one)])[0] == 0
    together = nursery.start(command("run"), ["record_rows", str(several)], ranks=ranks)
    assert together.wait() == 0, together.texts
    assert together.codes == [0] * ranks
    assert_close(records(tmp_path / "run"), records(tmp_path / "alone"))
    assert wrong_rows(several, one) == []
    assert "held-out mlm_loss" in together.text
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["ranks"] == [ranks]
    waits = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= each["awaited_rank"] < ranks and each["longest_wait"] >= 0 for each in waits if "lr" in each)
    assert not any(together.texts[1:])  # only rank 0 prints
    assert nursery.start(command("again"), ranks=ranks).wait() == 0
    assert records(tmp_path / "again") == records(tmp_path / "run")


@pytest.mark.parametrize("layers", [1, 2])
def test_ranks_share_the_products_of_muon(nursery: Nursery, shards: Path, tmp_path: Path, layers: int) -> None:
    """3 ranks share the matrices of a layer, of which only one rank has some, or of 2 layers."""
    recipe = tmp_path / "muon.toml"
    recipe.write_text('extends = "tiny"\n[optimizer]\nkind = "muon"\n')

    def command(name: str) -> list[str]:
        _, _, *rest = pretrain_command(shards, tmp_path / name)
        sizes = ["--training.row-tokens", "128", "--model.num-hidden-layers", str(layers)]
        return ["pretrain", str(recipe), *rest, *sizes]

    assert nursery.run(command("alone"))[0] == 0
    together = nursery.start(command("run"), ranks=3)
    assert together.wait() == 0, together.texts
    assert_close(records(tmp_path / "run"), records(tmp_path / "alone"))


@pytest.fixture(scope="module")
def whole(nursery: Nursery, shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two ranks without faults."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert nursery.start(pretrain_command(shards, run), ranks=2).wait() == 0
    return run


def test_ranks_resume_exactly_and_with_another_number_up_to_rounding(
    nursery: Nursery, shards: Path, whole: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut"
    victim = nursery.start(pretrain_command(shards, cut), ["die_after_step", 9], ranks=2)
    victim.wait_until(lambda: (cut / STATE).exists())
    victim.kill()
    other = shutil.copytree(cut, tmp_path / "other")
    resumed = nursery.start(pretrain_command(shards, cut), ranks=2)
    assert resumed.wait() == 0, resumed.texts
    assert f"after step 9 of {STEPS}" in resumed.text
    assert differences(cut, whole) == []
    assert nursery.run(pretrain_command(shards, other))[0] == 0
    assert_close(records(other), records(whole))
    assert "<p>2, then 1 process, each on 1 thread of " in re.sub(
        r"\d+ steps, .* per second\. ", "", (other / "report.html").read_text()
    )


def test_ranks_agree_on_the_clock(nursery: Nursery, shards: Path, tmp_path: Path) -> None:
    """They would hang or fail if one of them made another step, or read other phases. The clock of rank 1 is a day ahead."""
    run = tmp_path / "run"
    command = [*pretrain_command(shards, run), "--budget", "15s"]
    together = nursery.start(command, ["with_clock", 1, 86400.0], ranks=2)
    assert together.wait() == 0, together.texts
    assert together.codes == [0, 0]
    steps = [record for record in records(run) if record["split"] == "train"]
    assert [record["step"] for record in steps] == list(range(1, len(steps) + 1))
    assert (run / "model.safetensors").exists()


def test_signal_to_one_rank_saves_and_stops_all(nursery: Nursery, shards: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    victim = nursery.start_held(pretrain_command(shards, run), "hold_at", "pretrain", 5, 1, ranks=2)
    os.kill(victim.pids[1], signal.SIGTERM)
    victim.wait()
    assert victim.codes == [130, 130], victim.texts
    assert "saved" in victim.text
    assert (run / "checkpoints/step-00000005").exists()
    assert nursery.start(pretrain_command(shards, run), ranks=2).wait() == 0
    assert records(run) == records(whole)


@pytest.mark.parametrize("step", [1, 3, 5])  # nothing is due after it, a checkpoint, an evaluation
def test_a_rank_that_is_gone_is_said(nursery: Nursery, shards: Path, tmp_path: Path, step: int) -> None:
    command = [*pretrain_command(shards, tmp_path / "run"), "--training.row-tokens", "128"]
    victim = nursery.start_held(command, "hold_at", "pretrain", step, 1, ranks=3)
    os.kill(victim.pids[1], signal.SIGKILL)
    assert victim.wait() == 1
    [line] = victim.errors  # each of the two others notices it
    assert line.startswith("bertie: another rank has ended")
    assert not any("Traceback" in text for text in victim.texts)


def test_each_rank_says_where_it_hangs(nursery: Nursery, shards: Path, tmp_path: Path) -> None:
    """Rank 1 waits for a signal, and rank 0 for rank 1."""
    patches = ["impatient_watchdog", 0.5], ["hold_at", str(tmp_path / "held"), "pretrain", 3, 1]
    victim = nursery.start(pretrain_command(shards, tmp_path / "run"), *patches, ranks=2)
    victim.wait_until(lambda: "in all_reduce" in victim.texts[0] and "in wait_for_signal" in victim.texts[1])
    victim.go_on(rank=1)
    assert victim.wait() == 0, victim.texts


def test_more_ranks_than_rows_are_refused(nursery: Nursery, shards: Path, tmp_path: Path) -> None:
    command = [*pretrain_command(shards, tmp_path / "run"), "--training.row-tokens", "512"]
    told = "has 1 row for 2 ranks: lower training.row_tokens"
    assert_all_refuse(nursery.start(command, ranks=2), tmp_path / "run", told)


def assert_all_refuse(victim: Victim, run: Path, *messages: str) -> None:
    """One of the ranks prints a line, and nothing is written."""
    victim.wait()
    assert victim.codes == [2] * len(victim.pids), victim.texts
    [line] = victim.errors
    assert all(message in line for message in messages), line
    assert not any("Traceback" in text for text in victim.texts)
    assert not run.exists()


def test_what_only_one_rank_knows_is_the_only_message(nursery: Nursery, shards: Path, whole: Path) -> None:
    """Rank 0 refuses the folder. The other one, which waits for it, does not add that a rank has ended."""
    victim = nursery.start([*pretrain_command(shards, whole), "--seed", "7"], ranks=2)
    victim.wait()
    assert victim.codes == [2, 2], victim.texts
    [line] = victim.errors
    assert f"{whole} already holds another run: seed is 0 there and 7 here" in line
    assert not any("Traceback" in text for text in victim.texts)


@pytest.mark.parametrize(
    ("flag", "value", "key"),
    [
        ("--seed", "7", "seed"),
        pytest.param("--training.learning-rate", "1.0", "training.learning_rate", marks=pytest.mark.slow),
    ],
)
def test_ranks_with_different_settings_are_refused(
    nursery: Nursery, shards: Path, tmp_path: Path, flag: str, value: str, key: str
) -> None:
    command = pretrain_command(shards, tmp_path / "run")
    victim = nursery.start(command, ["with_flags", 1, flag, value], ranks=3)
    told = f"bertie: {key} is {value} on rank 1 and ", " on rank 0: start every process with the same command"
    assert_all_refuse(victim, tmp_path / "run", *told)


def test_a_rank_with_another_version_is_refused(nursery: Nursery, shards: Path, tmp_path: Path) -> None:
    victim = nursery.start(pretrain_command(shards, tmp_path / "run"), ["with_version", 2, "0.0.9"], ranks=3)
    told = "bertie's version is '0.0.9 (code ", " on rank 2 and ", " on rank 0: install the same on every machine"
    assert_all_refuse(victim, tmp_path / "run", *told)


def test_a_rank_with_other_shards_is_refused(
    nursery: Nursery, shards: Path, small_shards: Path, tmp_path: Path
) -> None:
    command = pretrain_command(shards, tmp_path / "run")
    victim = nursery.start(command, ["with_flags", 1, "--data", str(small_shards)], ranks=2)
    told = "SHA-256 of the shards' manifest is ", " on rank 1 and ", "give every machine the same shards"
    assert_all_refuse(victim, tmp_path / "run", *told)


def test_a_run_of_another_machine_is_not_begun_again(
    nursery: Nursery, shards: Path, whole: Path, tmp_path: Path
) -> None:
    """After a restart, rank 0 may be on a machine without the folder."""
    for finished in (True, False):
        there = shutil.copytree(whole, tmp_path / f"finished {finished}")
        if not finished:
            (there / "manifest.json").unlink()
        command = pretrain_command(shards, tmp_path / "run")
        victim = nursery.start(command, ["with_flags", 1, "--out", str(there)], ranks=2)
        what = "is finished" if finished else f"has a checkpoint of step {STEPS}"
        told = f"{there} {what} on {platform.node()} (rank 1), but on", "is of step 0: give every machine the same"
        assert_all_refuse(victim, tmp_path / "run", *told)


def test_the_folder_of_rank_0_counts(nursery: Nursery, shards: Path, whole: Path, tmp_path: Path) -> None:
    """Others need none, and a rank with older checkpoints does no harm."""
    run, older = shutil.copytree(whole, tmp_path / "run"), shutil.copytree(whole, tmp_path / "older")
    for place, steps in ((run, (STEPS,)), (older, (STEPS, 9))):
        for name in ("manifest.json", *(f"checkpoints/step-{step:08d}" for step in steps)):
            remove(place / name)
    resumed = nursery.start(pretrain_command(shards, run), ["with_flags", 1, "--out", str(older)], ranks=2)
    assert resumed.wait() == 0, resumed.texts
    assert f"after step 9 of {STEPS}" in resumed.text
    assert differences(run, whole) == []


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.fixture(scope="module")
def uneven(examples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples whose last step of an epoch has one: two of three ranks have none in it."""
    folder = tmp_path_factory.mktemp("uneven")
    lines = (examples / "train.jsonl").read_text().splitlines(keepends=True)
    (folder / "train.jsonl").write_text("".join(lines[:33]))
    shutil.copy(examples / "dev.jsonl", folder)
    return folder


def finetune(examples: Path, model: Path, out: Path) -> list[str]:
    """Without dropout, whose masks depend on the micro-batches."""
    flags = ["--hidden-dropout-prob", "0", "--attention-probs-dropout-prob", "0", "--head-dropout-prob", "0"]
    flags += ["--training.learning-rate", "1e-3", "--training.epochs", "2"]
    return [*finetune_command(examples, model, out), *flags]


@pytest.fixture(scope="module")
def tuned(nursery: Nursery, uneven: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished fine-tuning of one process."""
    run = tmp_path_factory.mktemp("tuned") / "run"
    code, text = nursery.run(finetune(uneven, pretrained, run))
    assert code == 0, text
    return run


def assert_same_predictions(found: Path, expected: Path) -> None:
    """Up to rounding, and in the order of the examples."""
    both = [(run / "dev" / "predictions.jsonl").read_text().splitlines() for run in (found, expected)]
    for ours, theirs in zip(*(map(json.loads, lines) for lines in both), strict=True):
        assert (ours["source"], ours["label"]) == (theirs["source"], theirs["label"])
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-4)


def test_ranks_fine_tune_as_one_process_does(
    nursery: Nursery, uneven: Path, pretrained: Path, tuned: Path, tmp_path: Path
) -> None:
    """And they resume after a kill, also as one process."""
    run, cut = tmp_path / "run", tmp_path / "cut"
    together = nursery.start(finetune(uneven, pretrained, run), ranks=3)
    together.wait()
    assert together.codes == [0, 0, 0], together.texts
    assert not any(together.texts[1:])
    assert_close(records(run), records(tuned))
    assert_same_predictions(run, tuned)
    victim = nursery.start(finetune(uneven, pretrained, cut), ["die_after_step", 6], ranks=3)
    victim.wait_until(lambda: (cut / "checkpoints/step-00000006").exists())
    victim.kill()
    other = shutil.copytree(cut, tmp_path / "other")
    resumed = nursery.start(finetune(uneven, pretrained, cut), ranks=3)
    assert resumed.wait() == 0, resumed.texts
    assert "after step 6 of 10" in resumed.text
    assert differences(cut, run) == []
    assert nursery.run(finetune(uneven, pretrained, other))[0] == 0
    assert_close(records(other), records(tuned))


def test_all_ranks_end_with_the_best_weights_of_before_a_kill(
    nursery: Nursery, examples: Path, pretrained: Path, tmp_path: Path
) -> None:
    """The labels of the dev examples are swapped, so that the first evaluation, after step 3, is the best."""
    (other := tmp_path / "examples").mkdir()
    shutil.copy(examples / "train.jsonl", other)
    dev = [json.loads(line) for line in (examples / "dev.jsonl").read_text().splitlines()]
    swapped = [row | {"label": {"x": "y", "y": "x"}[row["label"]]} for row in dev]
    (other / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in swapped))
    run, whole = tmp_path / "run", tmp_path / "whole"

    def command(out: Path) -> list[str]:
        return [*finetune(other, pretrained, out), "--training.patience", "2"]

    victim = nursery.start(command(run), ["die_after_step", 6], ranks=2)
    victim.wait_until(lambda: (run / "checkpoints/step-00000006").exists())
    victim.kill()
    resumed = nursery.start(command(run), ranks=2)
    resumed.wait()
    assert resumed.codes == [1, 0], resumed.texts  # 1: no better than a constant
    assert "loading the weights of step 3" in resumed.text
    assert nursery.start(command(whole), ranks=2).wait() == 1
    assert differences(run, whole) == []


def test_ranks_fine_tune_with_dropout(nursery: Nursery, examples: Path, pretrained: Path, tmp_path: Path) -> None:
    """A second run with as many gives the same files."""
    for name in ("one", "two"):
        command = [*finetune_command(examples, pretrained, tmp_path / name), "--training.epochs", "1"]
        assert nursery.start(command, ranks=2).wait() == 0
    assert differences(tmp_path / "one", tmp_path / "two") == []


def test_several_runs_of_several_ranks_are_refused(
    nursery: Nursery, examples: Path, pretrained: Path, tmp_path: Path
) -> None:
    command = [*finetune_command(examples, pretrained, tmp_path / "run"), "--restarts", "2"]
    told = "fine-tuning with restarts or a grid runs in one process"
    assert_all_refuse(nursery.start(command, ranks=2), tmp_path / "run", told)


def test_ranks_compare_the_texts_of_a_batch(nursery: Nursery, pretrained: Path, tmp_path: Path) -> None:
    """In batches of 5 and one of 6, whose last parts differ by rank; a part has one or two texts."""
    rows = [{"text": f"the {'abcdefgh'[i % 8]} ship", "text_pair": f"a {'abcdefgh'[i % 8]} boat"} for i in range(16)]
    for name in ("train", "dev"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, ranks in (("alone", 1), ("run", 3)):
        command = finetune_command(tmp_path, pretrained, tmp_path / name)
        flags = ["--training.batch-size", "5", "--training.row-tokens", "8"]
        flags += ["--hidden-dropout-prob", "0", "--attention-probs-dropout-prob", "0"]  # each rank draws its own
        together = nursery.start([command[0], "embed", *command[2:], *flags], ranks=ranks)
        assert together.wait() == 0, together.texts
    assert_close(records(tmp_path / "run"), records(tmp_path / "alone"))


@pytest.mark.parametrize(
    "everyone", [pytest.param(False, marks=pytest.mark.slow), True], ids=["torchrun", "all processes"]
)
def test_torchrun_restarts_after_a_kill_and_saves_at_sigterm(
    nursery: Nursery, shards: Path, undisturbed: Path, tmp_path: Path, everyone: bool
) -> None:
    """Slurm signals all processes, and torchrun signals its processes again."""
    run, held = tmp_path / "run", tmp_path / "held"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", "-m", "bertie", *pretrain_command(shards, run)]
    environment = holds(tmp_path / "python", held, "pretrain", 4, rank=1)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        wait_for(held, started)
        held.unlink()  # so that the next rank 1 waits, too
        os.kill(children(started)[-1], signal.SIGKILL)
        wait_for(held, started)
        for pid in [*(children(started) if everyone else []), started.pid]:
            os.kill(pid, signal.SIGTERM)
        _, text = started.communicate(timeout=600)
    assert "resuming" in text
    assert f"saved {run} after step 7 of {STEPS}" in text
    assert (run / "checkpoints/step-00000007").exists()
    assert nursery.start(pretrain_command(shards, run), ranks=2).wait() == 0
    assert_close(records(run), records(undisturbed))


def children(process: subprocess.Popen[str]) -> list[int]:
    """Their process ids, the ranks' in order."""
    return [int(child) for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
