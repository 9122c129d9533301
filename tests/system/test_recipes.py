"""The scripts of recipes/ for clusters, with stand-ins for Slurm's programs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from bertie.commands.parser import parse
from bertie.tokenizers.tokenizer import Tokenizer

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
PRETRAIN, PREPARE, SKY = RECIPES / "pretrain.slurm", RECIPES / "prepare.slurm", RECIPES / "pretrain.sky.yaml"

Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Run a script in `tmp_path`, with stand-ins: {program: body}. Each one appends its arguments to PROGRAM.log."""

    def run(
        path: Path, *arguments: str, stand_ins: dict[str, str], **variables: str
    ) -> subprocess.CompletedProcess[str]:
        (folder := tmp_path / "bin").mkdir(exist_ok=True)
        for name, body in stand_ins.items():
            (folder / name).write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >> {name}.log\n{body}\n')
            (folder / name).chmod(0o755)
        places = f"{folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", path, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PATH": places, **variables},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run


def calls(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.log"
    return path.read_text().splitlines() if path.exists() else []


def test_scripts_have_the_syntax_of_bash(tmp_path: Path) -> None:
    task = yaml.safe_load(SKY.read_text())
    for part in ("setup", "run"):
        (tmp_path / part).write_text(task[part])
    for path in (PRETRAIN, PREPARE, tmp_path / "setup", tmp_path / "run"):
        subprocess.run(["bash", "-n", path], check=True)


def require_rows(verb: str, flags: list[str], ranks: int) -> None:
    """bertie accepts the flags, and a step of every phase has a row for each rank."""
    args = parse(verb, flags)
    assert verb == "pretrain"
    assert min(phase.shape.rows for phase in args.recipe.resolved_phases) >= ranks


def test_documented_jobs_have_rows_for_all_gpus() -> None:
    """Those of the page and of the script's first lines."""
    texts = [(RECIPES.parent / "docs/how-to/clusters.md").read_text(), PRETRAIN.read_text()]
    found = [
        line.strip("# \n") for text in texts for line in re.findall(r"(?m)^(?:# +)?sbatch .*pretrain.slurm.*$", text)
    ]
    jobs = [job.split() for job in found if "[" not in job]
    assert len(jobs) == 4
    for job in jobs:
        nodes = int(job[job.index("--nodes") + 1]) if "--nodes" in job else 2
        recipe, shards, run, *flags = job[job.index("recipes/pretrain.slurm") + 1 :]
        require_rows("pretrain", [recipe, "--data", shards, "--out", run, *flags], 8 * nodes)


SLURM = {"SLURM_JOB_NODELIST": "node[0-7]", "SLURM_JOB_ID": "17", "SLURM_GPUS_ON_NODE": "8", "SLURM_NNODES": "8"}
SLURM |= {"SLURM_CPUS_PER_TASK": "48"}


def slurm(torchrun: str) -> dict[str, str]:
    """Stand-ins for the programs of a job of eight machines. torchrun: what it does."""
    names = "\\n".join(f"node{number}" for number in range(8))
    return {
        "scontrol": f'[ "$1" != show ] || printf "{names}\\n"',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"',
        "torchrun": f"printf '%s\\0' \"$@\" > words; {torchrun}",
    }


def test_slurm_starts_torchrun_on_every_machine(script: Script, tmp_path: Path) -> None:
    """torchrun and bertie accept the flags."""
    flags = ["--training.batch-size", "16384"]
    code = "mkdir -p runs/m; touch runs/m/manifest.json"
    assert (
        script(PRETRAIN, "modern-base", "my shards", "runs/m", *flags, stand_ins=slurm(code), **SLURM).returncode == 0
    )
    words = (tmp_path / "words").read_text().split("\0")[:-1]
    found = get_args_parser().parse_args(words)
    assert (found.nnodes, found.nproc_per_node, found.rdzv_endpoint) == ("8", "8", "node0:29500")
    assert (found.rdzv_id, found.rdzv_backend, found.max_restarts) == ("17", "c10d", 3)
    assert (found.module, found.training_script) == (True, "bertie")
    verb, *rest = found.training_script_args
    assert rest[:5] == ["modern-base", "--data", "my shards", "--out", "runs/m"]
    assert rest[-2:] == flags
    require_rows(verb, rest, 64)
    assert "--cpus-per-task=48" in calls(tmp_path, "srun")[0]
    assert calls(tmp_path, "scontrol") == ["show hostnames node[0-7]"]  # the run is finished
    assert script(PRETRAIN, "modern-base", stand_ins={}).returncode == 2


def test_a_job_of_slurm_goes_back_into_the_queue_only_after_a_checkpoint(script: Script, tmp_path: Path) -> None:
    """One that is refused would be refused again, without an end."""
    words = ["tiny", "shards", "run"]
    refused = script(PRETRAIN, *words, stand_ins=slurm("exit 1"), **SLURM)
    assert refused.returncode == 1
    assert "run has no new checkpoint, so this job does not go back into the queue" in refused.stderr
    saved = slurm("mkdir -p run/checkpoints/step-00000300; exit 1")
    assert script(PRETRAIN, *words, stand_ins=saved, **SLURM).returncode == 0
    assert calls(tmp_path, "scontrol")[1:] == ["show hostnames node[0-7]", "requeue 17"]
    assert script(PRETRAIN, *words, stand_ins=saved, **SLURM).returncode == 1
    damaged = slurm("mv run/checkpoints/step-00000300 run/checkpoints/damaged-step-00000300; exit 1")
    assert script(PRETRAIN, *words, stand_ins=damaged, **SLURM).returncode == 0
    assert calls(tmp_path, "scontrol").count("requeue 17") == 2
    ended = slurm("exit 0")  # without a run
    assert script(PRETRAIN, *words, stand_ins=ended, **SLURM).returncode == 1


def test_skypilot_starts_torchrun_on_every_machine(script: Script, tmp_path: Path) -> None:
    task = yaml.safe_load(SKY.read_text())
    (tmp_path / "bucket" / "shards").mkdir(parents=True)
    (tmp_path / "bucket" / "shards" / "manifest.json").touch()
    (tmp_path / "run.sh").write_text(task["run"].replace("/bucket", f"{tmp_path}/bucket"))
    stand_ins = {"torchrun": "printf '%s\\0' \"$@\" > words; mkdir -p ~/runs/base-paper"}
    variables = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_RANK": "1"}
    variables |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "HOME": str(tmp_path), **task["envs"]}
    assert script(tmp_path / "run.sh", stand_ins=stand_ins, **variables).returncode == 0
    found = get_args_parser().parse_args((tmp_path / "words").read_text().split("\0")[:-1])
    assert (found.nnodes, found.nproc_per_node, found.node_rank, found.master_addr) == ("2", "8", 1, "10.0.0.1")
    verb, *flags = found.training_script_args
    require_rows(verb, flags, 2 * int(task["resources"]["accelerators"].rpartition(":")[2]))
    assert [path.name for path in (tmp_path / "bucket").iterdir()] == ["shards"]  # the first machine copies the run
    (tmp_path / "shards.part").mkdir()  # of a copy that was stopped
    (tmp_path / "shards").rename(tmp_path / "before")
    first = {**variables, "SKYPILOT_NODE_RANK": "0"}
    for _ in range(2):  # the second time resumes
        assert script(tmp_path / "run.sh", stand_ins=stand_ins, **first).returncode == 0
        assert [path.name for path in (tmp_path / "shards").iterdir()] == ["manifest.json"]
    assert (tmp_path / "bucket" / "base-paper").is_dir()


def test_an_array_shares_the_work_of_prepare(script: Script, tmp_path: Path) -> None:
    stand_ins = {
        "ray": '[ "$2" != --head ] || exec sleep 600',
        "bertie": "cat .prepare-17 > seen; exit $CODE",
        "hostname": "echo 127.0.0.1 fe80::1",
    }
    variables = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "16", "RAY_POLL": "0.1", "CODE": "0"}
    words = ["texts", "tokenizer", "shards", "--language", "de"]
    (tmp_path / ".prepare-17.failed").touch()  # before Slurm has started task 0 again
    with socket.create_server(("127.0.0.1", 0)) as ray:
        variables["RAY_PORT"] = port = str(ray.getsockname()[1])
        assert script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="0", **variables).returncode == 0
        failed = script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="0", **{**variables, "CODE": "3"})
    assert failed.returncode == 3
    waiting = script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="1", **variables)
    assert (waiting.returncode, waiting.stderr) == (1, "task 0 has failed: see its messages\n")
    command, _ = calls(tmp_path, "bertie")
    assert command == (
        f"prepare texts --tokenizer tokenizer --out shards --executor ray --ray-address 127.0.0.1:{port} --language de"
    )
    assert parse("prepare", command.split()[1:]) is not None
    assert (tmp_path / "seen").read_text() == f"127.0.0.1:{port}\n"
    assert not (tmp_path / ".prepare-17").exists()
    broken = {**stand_ins, "ray": '[ "$2" != --head ]'}
    assert script(PREPARE, *words, stand_ins=broken, SLURM_ARRAY_TASK_ID="0", **variables).returncode == 1
    (tmp_path / ".prepare-17").write_text(f"127.0.0.1:{port}\n")
    assert script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="1", **variables).returncode == 1
    assert calls(tmp_path, "ray")[-1].startswith(f"start --address 127.0.0.1:{port} --num-cpus 16 ")
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "manifest.json").touch()
    assert script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="1", **variables).returncode == 0
    (tmp_path / ".prepare-17").unlink()
    assert script(PREPARE, *words, stand_ins=stand_ins, SLURM_ARRAY_TASK_ID="1", **variables).returncode == 0
    assert script(PREPARE, "texts", stand_ins=stand_ins, **variables).returncode == 2


@pytest.mark.slow  # Ray starts for half a minute
def test_tasks_of_an_array_write_the_shards_of_one_process(
    small_texts: list[str], small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs the package ray")
    (tmp_path / "texts").mkdir()
    for number in range(6):
        (tmp_path / "texts" / f"{number}.txt").write_text("\n\n".join(small_texts[number::6]))
    small_tokenizer.save(tmp_path / "tokenizer")
    command = [sys.executable, "-m", "bertie", "prepare", "texts", "--tokenizer", "tokenizer", "--out", "expected"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "bin").mkdir()
    for name, body in {"bertie": f'exec {sys.executable} -m bertie "$@"', "hostname": "echo 127.0.0.1"}.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    places = os.pathsep.join([str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    variables = {"PATH": places, "SLURM_ARRAY_JOB_ID": "17", "SLURM_CPUS_PER_TASK": "1", "RAY_POLL": "0.2"}
    with tempfile.TemporaryDirectory() as short:  # the names of Ray's sockets have to be short
        variables |= {"RAY_PORT": port, "RAY_TMPDIR": short, "HOME": str(tmp_path)}
        tasks = [
            subprocess.Popen(
                ["bash", PREPARE, "texts", "tokenizer", "shards"],
                cwd=tmp_path,
                env={**os.environ, **variables, "SLURM_ARRAY_TASK_ID": str(number)},
                start_new_session=True,
            )
            for number in (1, 0)
        ]
        try:
            assert [task.wait(600) for task in tasks] == [0, 0]
        finally:
            for task in tasks:
                with suppress(ProcessLookupError):
                    os.killpg(task.pid, signal.SIGKILL)
    expected = sorted((tmp_path / "expected").rglob("*.npy"))
    assert expected
    for path in expected:
        assert (tmp_path / "shards" / path.relative_to(tmp_path / "expected")).read_bytes() == path.read_bytes()
