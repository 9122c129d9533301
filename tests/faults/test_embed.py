"""Writing vectors: killed or stopped at any moment, no file of that name is there; the same command again is whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killing import holds, wait_for


@pytest.fixture(scope="module")
def folder(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and texts that are computed in several parts."""
    folder = tmp_path_factory.mktemp("embed")
    shutil.copytree(pretrained, folder / "model")
    (folder / "many.txt").write_text("the ka du and the longer text of more words\n" * 20_000)
    (folder / "few.txt").write_text("".join(f"the ka du {i}\n" for i in range(3000)))
    return folder


def command(folder: Path, name: str, out: Path, unit: str) -> list[str]:
    flags = ["--input", str(folder / name), "--out", str(out), "--unit", unit]
    return [sys.executable, "-m", "bertie", "embed", str(folder / "model"), *flags]


def heeding() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so does what that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("unit", ["text", "word"])
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_stopped_while_writing(
    folder: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, unit: str, stop: signal.Signals
) -> None:
    out, apart = tmp_path / "x.npy", tmp_path_factory.mktemp("held")
    begun, environment = command(folder, "many.txt", out, unit), holds(apart, apart / "held", "embedding", 2)
    with subprocess.Popen(begun, stderr=subprocess.PIPE, text=True, preexec_fn=heeding, env=environment) as process:
        wait_for(apart / "held", process)
        assert list(tmp_path.glob(".*.tmp-new"))
        os.kill(process.pid, stop)
        process.wait(60)
    left = {path.name for path in tmp_path.iterdir()}
    if stop is signal.SIGKILL:
        assert process.returncode == -signal.SIGKILL
        assert left
        assert all(".tmp-" in name for name in left)
    else:
        assert process.returncode == 130
        assert left == set()
    subprocess.run(command(folder, "few.txt", out, unit), check=True, stderr=subprocess.DEVNULL)
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy"} | ({"x.words.parquet"} if unit == "word" else set())
    vectors = np.load(out, mmap_mode="r")
    assert len(vectors) == 3000 * (4 if unit == "word" else 1)
    assert np.isfinite(vectors).all()


def test_a_full_disk(folder: Path, small_texts: list[str], tmp_path: Path) -> None:
    (folder / "other.txt").write_text("\n".join(small_texts))  # vectors that differ do not compress
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000,) * 2)\n"
        "from bertie.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    for name in ("x.npy", "x.parquet"):
        argv = command(folder, "other.txt", tmp_path / name, "text")[3:]
        done = subprocess.run([sys.executable, "-c", code, *argv], stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 1
        assert f"cannot write {tmp_path / name}: " in done.stderr
        assert list(tmp_path.iterdir()) == []
