"""`bertie embed`, killed or interrupted, leaves no output file; the same command then writes a complete one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killing import holds, wait_for

from bertie.cli import main


@pytest.fixture(scope="module")
def folder(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and more texts than it embeds before it is killed."""
    folder = tmp_path_factory.mktemp("embed")
    shutil.copytree(pretrained, folder / "model")
    (folder / "many.txt").write_text("the ka du and the longer text of more words\n" * 20_000)
    (folder / "few.txt").write_text("".join(f"the ka du {i}\n" for i in range(300)))
    return folder


def command(folder: Path, name: str, out: Path, unit: str) -> list[str]:
    flags = ["--input", str(folder / name), "--out", str(out), "--unit", unit]
    return [sys.executable, "-m", "bertie", "embed", str(folder / "model"), *flags]


def accept_interrupts() -> None:
    """Undo what a shell does for background jobs: they and their children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("stop", "unit"),
    [
        (signal.SIGKILL, "word"),
        pytest.param(signal.SIGINT, "text", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "word", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "text", marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, "word", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "text", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_command_leaves_no_file(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, unit: str, stop: signal.Signals
) -> None:
    out, outside = tmp_path / "x.npy", tmp_path_factory.mktemp("held")
    begun, environment = command(folder, "many.txt", out, unit), holds(outside, outside / "held", "embed", 2)
    with subprocess.Popen(
        begun, stderr=subprocess.PIPE, text=True, preexec_fn=accept_interrupts, env=environment
    ) as process:
        wait_for(outside / "held", process)
        assert list(tmp_path.glob(".*.tmp-new"))
        os.kill(process.pid, stop)
        process.wait(600)
    left = {path.name for path in tmp_path.iterdir()}
    if stop is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert left
        assert all(".tmp-" in name for name in left)
    else:
        assert process.returncode == 130
        assert left == set()
    assert main(command(folder, "few.txt", out, unit)[3:]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy"} | ({"x.words.parquet"} if unit == "word" else set())
    vectors = np.load(out, mmap_mode="r")
    assert len(vectors) == 300 * (4 if unit == "word" else 1)
    assert np.isfinite(vectors).all()


def test_a_full_disk_leaves_no_file(folder: Path, small_texts: list[str], tmp_path: Path) -> None:
    (folder / "other.txt").write_text("\n".join(small_texts))  # different texts: their vectors do not compress
    code = (
        "import json, resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000,) * 2)\n"
        "from bertie.cli import main\n"
        "for argv in json.loads(sys.argv[1]): print(main(argv))"
    )
    outs = [tmp_path / name for name in ("x.npy", "x.parquet")]
    commands = json.dumps([command(folder, "other.txt", out, "text")[3:] for out in outs])
    done = subprocess.run([sys.executable, "-c", code, commands], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
    assert all(f"cannot write {out}: " in done.stderr for out in outs)
    assert list(tmp_path.iterdir()) == []
