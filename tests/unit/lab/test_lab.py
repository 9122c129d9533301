"""Labs that run for real: results, resuming, failures, launchers, and the page."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import bertie
from bertie.base.errors import MachineError, UsageError, UserError
from bertie.cli import main
from bertie.lab import dry_run, schedule, worker
from bertie.lab.launchers import ProcessLauncher, Work
from bertie.lab.schedule import only_process
from bertie.lab.steps import Workplace

File = dict[str, Any]


@dataclass
class Ended:
    """A step that this process has run."""

    code: int

    def poll(self) -> int:
        return self.code

    def terminate(self) -> None:
        pass

    def wait(self) -> None:
        pass


@pytest.fixture(scope="module", autouse=True)
def without_processes() -> Iterator[None]:
    """Labs of this process run their steps in it, without importing torch for each. Those of `command` start processes."""
    start = ProcessLauncher.start

    def run(launcher: ProcessLauncher, arguments: Sequence[str], log: Path) -> Any:
        if launcher.prefix:
            return start(launcher, arguments, log)
        plan, steps, name, threads = arguments
        with open(log, "a") as file, redirect_stderr(file):
            return Ended(worker.main(Path(plan), Workplace(Path(steps), name, int(threads)), parent=0))

    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ProcessLauncher, "start", run)
        patched.setattr(schedule, "POLL_SECONDS", 0.01)
        yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="module")
def finished(lab_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the lab of `lab_file` after a run."""
    out = tmp_path_factory.mktemp("labs") / "done"
    result = bertie.run_lab(small(), lab_data, out)
    assert result["failed"] == 0
    return out


def small() -> File:
    from tests.unit.lab.conftest import lab_file  # the fixture's own function

    return lab_file.__wrapped__()  # pyright: ignore[reportFunctionMemberAccess]


def results(out: Path) -> Any:
    """The scores in results.json, without times."""
    rows = json.loads((out / "results.json").read_text())["rows"]
    return [{**row, "minutes": None} for row in rows]


def states(steps: Path) -> dict[str, int]:
    """When each result was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in steps.glob("*/result.json")}


def test_a_lab_writes_scores_differences_and_a_page(finished: Path) -> None:
    bert, no_nsp = results(finished)
    assert bert["variants"] == ["BERT"]
    assert set(bert["measures"]) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "and"}
    assert set(no_nsp["measures"]) == {"mlm_loss", "mlm_accuracy", "and"}
    score = no_nsp["measures"]["and"]
    assert score["difference"]["value"] == pytest.approx(score["values"][0] - bert["measures"]["and"]["values"][0])
    assert score["mean"]["low"] <= score["mean"]["value"] <= score["mean"]["high"]
    assert bert["measures"]["mlm_loss"]["difference"] is None  # the first row is the reference
    tables = (finished / "results.md").read_text()
    assert "| objective | masked LM, loss (nats) |" in tables
    assert "| no NSP |" in tables
    assert tables.index("| objective | and, accuracy |") < tables.index("| objective | masked LM, loss (nats) |")
    page = (finished / "report.html").read_text()
    assert all(text in page for text in ("Objectives", "Does it help?", "no NSP", "and, accuracy"))
    assert not list((finished / "steps").glob("finetune-*/run/model.safetensors"))  # only what others need is kept
    assert not list((finished / "steps").glob("*/run/checkpoints"))


def test_a_finished_lab_computes_nothing_again_and_a_new_variant_only_itself(finished: Path, lab_data: Path) -> None:
    before = states(finished / "steps")
    file = small()
    file["axes"][0]["variants"].append({"name": "frozen", "finetune": {"frozen": True}})
    assert len(bertie.run_lab(file, lab_data, finished)["rows"]) == 3
    after = states(finished / "steps")
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    bertie.run_lab(small(), lab_data, finished)
    assert states(finished / "steps") == after


def test_the_page_names_the_machine_and_the_version_that_trained_each_model(
    finished: Path, lab_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A lab goes on with another commit, number of threads or GPU. Its earlier results are not of the last one."""
    out = tmp_path / "out"
    shutil.copytree(finished, out)
    bertie.run_lab(small(), lab_data, out, work=Work(threads=2))
    assert "not trained alike" not in capfd.readouterr().err
    assert "4 trainings in " in (out / "results.md").read_text()
    assert " with 1 thread on " in (out / "results.md").read_text()  # by which they were trained, not that of this call
    plan = json.loads((out / "plan.json").read_text())
    changed = out / "steps" / plan["cells"][0]["tasks"]["and"] / "result.json"
    result = json.loads(changed.read_text())
    result["environment"] |= {"commit": "0123456789ab", "precision": "fp16"}
    changed.write_text(json.dumps(result))
    bertie.run_lab(small(), lab_data, out)
    warning = capfd.readouterr().err
    assert "not trained alike" in warning
    for text in (warning, (out / "report.html").read_text()):
        assert "1 training in fp16 with 1 thread on " in text
        assert "commit 0123456789ab." in text
        assert "3 trainings in " in text


def test_losses_of_different_objectives_are_not_compared(finished: Path, lab_data: Path) -> None:
    file = small()
    changes = {"model": {"causal": True}, "layout": {"kind": "doc_sentences"}, "objectives": [{"kind": "clm"}]}
    file["axes"][0]["variants"][1] = {"name": "left-to-right", "pretrain": changes}
    bertie.run_lab(file, lab_data, finished)
    tables = (finished / "results.md").read_text()
    assert "causal LM, loss" in tables
    assert "Differences to the first row:" not in tables  # that of losses: the two models have none in common
    bertie.run_lab(small(), lab_data, finished)
    assert "Differences to the first row:" in (finished / "results.md").read_text()


def test_one_pre_training_counts_once(finished: Path, lab_data: Path, tmp_path: Path) -> None:
    file = small() | {"seeds": [0, 1], "pretrain_seed": 0}
    file["axes"][0]["variants"].pop()
    bertie.run_lab(file, lab_data, tmp_path / "out", steps=finished / "steps")
    measures = results(tmp_path / "out")[0]["measures"]
    assert len(measures["and"]["values"]) == 2
    assert measures["mlm_loss"]["sd"] is None  # a single model
    assert "Each row has a single pre-training" in (tmp_path / "out" / "results.md").read_text()
    assert "Each row has a single pre-training" not in (finished / "results.md").read_text()


@pytest.mark.slow
def test_parts_of_a_task_and_given_scores_stand_beside_its_score(
    finished: Path, lab_data: Path, tmp_path: Path
) -> None:
    names = ["short" if number % 3 else "long" for number in range(60)]
    (tmp_path / "parts.txt").write_text("\n".join(names) + "\n")
    (tmp_path / "given.json").write_text(json.dumps({"chance": {"and": 0.5, "and: long": 0.25} | {"short": 0.75}}))
    file = small()
    file["tasks"][0] |= {"parts": str(tmp_path / "parts.txt"), "baselines": str(tmp_path / "given.json")}
    with pytest.raises(UserError, match="chance has a score of 'and: long': known are and, long, short"):
        bertie.run_lab(file, lab_data, finished)
    (tmp_path / "given.json").write_text(json.dumps({"chance": {"and": 0.5, "short": 0.75}}))
    before = states(finished / "steps")
    bertie.run_lab(file, lab_data, finished)
    assert states(finished / "steps") == before  # parts are read from the runs that are there
    for row in results(finished):
        whole, short, long = (row["measures"][name] for name in ("and", "and: short", "and: long"))
        sizes = names.count("short"), names.count("long")
        mean = sum(size * part["values"][0] for size, part in zip(sizes, (short, long), strict=True)) / 60
        assert mean == pytest.approx(whole["values"][0])
        assert short["mean"]["low"] <= short["mean"]["value"] <= short["mean"]["high"]
    tables = (finished / "results.md").read_text()
    assert "| objective | and, accuracy | and: long, accuracy | and: short, accuracy |" in tables
    assert "| chance | 0.500 | – | 0.750 |" in tables
    assert json.loads((finished / "results.json").read_text())["baselines"] == {
        "chance": {"and": 0.5, "and: short": 0.75}
    }
    assert "long: BERT 0." in (finished / "report.html").read_text()  # the picture says what it shows
    bertie.run_lab(small(), lab_data, finished)


def test_parts_that_do_not_fit_are_refused(finished: Path, lab_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "parts.txt"
    file = small()
    file["tasks"][0]["parts"] = str(path)

    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            bertie.run_lab(file, lab_data, finished)

    refused(UsageError, "task and: no such file: .*parts.txt")
    path.write_text("a\n" * 59)
    refused(UserError, "has 59 lines, and .*dev.tsv has 60 examples: give one line for each example")
    path.write_text("a\n" * 59 + "\n")
    refused(UserError, "line 60 is not the name of a part")
    path.write_text("a\n" * 60)
    file["tasks"][0]["finetune"]["metric"] = "mcc_of_parts"
    refused(UsageError, "metric is 'mcc_of_parts'")
    file["tasks"][0]["finetune"]["metric"] = ""
    file["tasks"].append(file["tasks"][0] | {"name": "and: a", "parts": ""})
    refused(UsageError, "two scores have the name 'and: a': rename the task or the part")


def test_labs_share_steps(finished: Path, lab_data: Path, tmp_path: Path) -> None:
    file = small()
    file["axes"][0]["variants"].pop()
    before = states(finished / "steps")
    bertie.run_lab(file, lab_data, tmp_path / "other", steps=finished / "steps")
    assert states(finished / "steps") == before
    assert not (tmp_path / "other" / "steps").exists()
    assert len(results(tmp_path / "other")) == 1


def prepared(finished: Path, out: Path) -> Path:
    """A folder of a lab that has its vocabulary and its shards."""
    trained = shutil.ignore_patterns("pretrain-*", "finetune-*")
    shutil.copytree(finished / "steps", out / "steps", ignore=trained)
    return out


def command(data: Path, out: Path, file: Path) -> list[str]:
    return [sys.executable, "-m", "bertie", "lab", str(file), "--data", str(data), "--out", str(out), "--json"]


@pytest.mark.parametrize("stop", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stopped_lab_resumes_and_ends_with_the_same_scores(
    stop: signal.Signals, finished: Path, lab_data: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "lab.toml", prepared(finished, tmp_path / "out")
    lab = small()
    lab["axes"][0]["variants"].pop()
    file.write_text(tomli_w.dumps(lab))
    process = subprocess.Popen(command(lab_data, out, file), stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not list((out / "steps").glob("pretrain-*/log.txt")):
        assert process.poll() is None
        time.sleep(0.05)
    done = states(out / "steps")
    process.send_signal(stop)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == (130 if stop == signal.SIGTERM else -signal.SIGKILL)
    assert (b"run the same command again" in errors) == (stop == signal.SIGTERM)
    assert not workers_of(out)
    wait_for_lock(out / "steps")
    assert bertie.run_lab(str(file), lab_data, out)["failed"] == 0
    assert done.items() <= states(out / "steps").items()
    assert results(out) == results(finished)[:1]


def test_jobs_of_slurm_end_when_the_command_is_killed(finished: Path, lab_data: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "lab.toml", prepared(finished, tmp_path / "out")
    file.write_text(tomli_w.dumps(small() | {"budget": {"unit": "steps", "amount": 1_000_000}}))
    stand_in_for_srun(tmp_path)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    process = subprocess.Popen([*command(lab_data, out, file), "--executor", "slurm"], env=environment)
    while not list((out / "steps").glob("pretrain-*/run/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not workers_of(out)


def stand_in_for_srun(folder: Path) -> None:
    """Write a program that notes its options in `folder`/jobs and runs the command."""
    srun = folder / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/jobs\nwhile [ "${{1#--}}" != "$1" ]; do shift; done\nexec "$@"\n'
    )
    srun.chmod(srun.stat().st_mode | stat.S_IEXEC)


def workers_of(out: Path) -> list[str]:
    """Processes of steps that still run, five minutes after their parent has ended. One that still imports torch ends later."""
    for _ in range(3000):
        listed = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
        running = [line for line in listed if "bertie.lab.worker" in line and str(out) in line]
        if not running:
            break
        time.sleep(0.1)
    return running


def wait_for_lock(steps: Path) -> None:
    """Wait until the steps are free: a process that was forked just before the kill holds the lock until it is a worker."""
    for _ in range(3000):
        with suppress(UsageError), only_process(steps):
            return
        time.sleep(0.1)


@pytest.mark.slow
def test_a_failed_step_is_reported_and_repeated(lab_data: Path, tmp_path: Path) -> None:
    file = small()
    file["axes"][0]["variants"][1] = {"name": "too large", "pretrain": {"training": {"batch_size": 100_000}}}
    first = bertie.run_lab(file, lab_data, tmp_path / "out")
    assert first["failed"] == 2  # the pre-training, and the fine-tuning that needs it
    good, bad = results(tmp_path / "out")
    assert good["measures"]["and"]["values"]
    assert bad["measures"] == {}
    assert any("seed 0: " in error and "lower --training.batch-size" in error for error in bad["failed"])
    assert "Failed: too large" in (tmp_path / "out" / "report.html").read_text()
    before = states(tmp_path / "out" / "steps")
    assert bertie.run_lab(file, lab_data, tmp_path / "out")["failed"] == 2
    assert states(tmp_path / "out" / "steps") == before


def test_a_dry_run_estimates_and_trains_nothing(
    lab_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = small()
    file["axes"][0]["variants"].append({"name": "GloVe", "glove": {"hidden_size": 8}})
    found = bertie.run_lab(file, lab_data, tmp_path / "out", dry=True)
    assert (found["cells"], found["steps"]) == (3, 6)
    assert 0 < found["hours"] < 1
    assert {name.split("-")[0] for name in states(tmp_path / "out" / "steps")} == {"vocabulary", "shards"}
    shown = capfd.readouterr().err
    assert "no NSP, seed 0: " in shown
    assert "GloVe, seed 0: vectors not estimated, about " in shown
    assert " s with " in shown  # a unit that suits a lab of seconds


def test_an_estimate_is_not_below_the_longest_cell(
    monkeypatch: pytest.MonkeyPatch, lab_data: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(dry_run, "_speed", lambda *_: dry_run.Speed(3600.0, 1e9))
    file = small()
    file["axes"][0]["variants"].pop()
    found = bertie.run_lab(file, lab_data, tmp_path / "out", work=Work(workers=8), dry=True)
    assert found["hours"] == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["flops", "seconds"])
def test_a_measured_budget_has_the_same_steps_for_all_seeds(lab_data: Path, tmp_path: Path, unit: str) -> None:
    file = small() | {
        "seeds": [0, 1],
        "tasks": [],
        "budget": {"unit": unit, "amount": 2.0 if unit == "seconds" else 2e7},
    }
    file["axes"][0]["variants"].pop()
    bertie.run_lab(file, lab_data, tmp_path / "out")
    steps = [json.loads(path.read_text()) for path in (tmp_path / "out" / "steps").glob("pretrain-*/result.json")]
    assert len(steps) == 2
    assert len({step["steps"] for step in steps}) == 1
    assert all(step["steps"] > 1 for step in steps)


@pytest.mark.slow
def test_slurm_jobs_get_their_options(lab_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_srun(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    file = small() | {"tasks": []}
    file["axes"][0]["variants"].pop()
    bertie.run_lab(
        file,
        lab_data,
        tmp_path / "out",
        work=Work(executor="slurm", slurm_options="--partition=gpu --gpus=1", threads=2),
    )
    jobs = (tmp_path / "jobs").read_text().splitlines()
    assert len(jobs) == 3  # vocabulary, shards, pre-training
    assert all(
        job.startswith("--ntasks=1 --cpus-per-task=2 --kill-on-bad-exit --partition=gpu --gpus=1 ") for job in jobs
    )
    assert results(tmp_path / "out")[0]["measures"].keys() == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}


@pytest.mark.slow
def test_ray_runs_the_steps(lab_data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the package ray")
    file = small() | {"tasks": []}
    file["axes"][0]["variants"].pop()
    assert bertie.run_lab(file, lab_data, tmp_path / "out", work=Work(executor="ray", workers=1))["failed"] == 0
    assert results(tmp_path / "out")[0]["measures"]["mlm_loss"]["values"]


def test_wrong_calls_are_refused(lab_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = small()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    monkeypatch.setenv("PATH", str(tmp_path))
    for options, message in (
        ({"slurm_options": "--gpus 1"}, "needs --executor slurm"),
        ({"ray_address": "auto"}, "needs --executor ray"),
        ({"workers": -1}, "workers is -1"),
        ({"threads": 0}, "threads is 0"),
    ):
        with pytest.raises(UsageError, match=message):
            Work(**options)
    for values, message in (
        ({"out": tmp_path / "other"}, "already exists"),
        ({"work": Work(executor="slurm")}, "needs srun"),
        ({"seeds": (1, 1)}, "twice"),
    ):
        with pytest.raises(UsageError, match=message):
            bertie.run_lab(**({"config": copy.deepcopy(file), "data": lab_data, "out": tmp_path / "out"} | values))
    assert not (tmp_path / "out").exists()


def test_two_processes_cannot_run_the_same_lab(finished: Path, lab_data: Path) -> None:
    from bertie.lab.schedule import only_process

    with only_process(finished / "steps"), pytest.raises(UsageError, match="another process"):
        bertie.run_lab(small(), lab_data, finished)


def test_a_lab_that_ended_before_its_plan_begins_again(
    lab_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise MachineError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("bertie.lab.lab.save_plan", full)
        with pytest.raises(MachineError):
            bertie.run_lab(small(), lab_data, tmp_path / "out")
    (tmp_path / "out" / ".plan.json.tmp-123").touch()  # of a process that was killed
    assert bertie.run_lab(small(), lab_data, tmp_path / "out", dry=True)["cells"] == 2


def test_the_command_fails_if_a_step_fails(lab_data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = small() | {"tasks": []}
    file["axes"][0]["variants"] = [{"name": "too large", "pretrain": {"training": {"batch_size": 100_000}}}]
    (tmp_path / "lab.toml").write_text(tomli_w.dumps(file))
    call = ["lab", str(tmp_path / "lab.toml"), "--data", str(lab_data), "--out", str(tmp_path / "out"), "--json"]
    assert main(call) == 1
    shown = capfd.readouterr()
    assert json.loads(shown.out)["failed"] == 1
    assert "1 step failed; the same command repeats them" in shown.err
