"""`bertie embed`, killed or interrupted, leaves no output file; the same command then writes a complete one."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from killing import Nursery

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
    return ["embed", str(folder / "model"), *flags]


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
    nursery: Nursery, folder: Path, tmp_path: Path, unit: str, stop: signal.Signals
) -> None:
    out = tmp_path / "x.npy"
    victim = nursery.start_held(command(folder, "many.txt", out, unit), "hold_at", "embed", 2)
    assert list(tmp_path.glob(".*.tmp-new"))
    code = victim.kill(stop)
    left = {path.name for path in tmp_path.iterdir()}
    if stop is signal.SIGKILL:
        assert code == -signal.SIGKILL
        assert left
        assert all(".tmp-" in name for name in left)
    else:
        assert code == 130
        assert left == set()
    assert main(command(folder, "few.txt", out, unit)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy"} | ({"x.words.parquet"} if unit == "word" else set())
    vectors = np.load(out, mmap_mode="r")
    assert len(vectors) == 300 * (4 if unit == "word" else 1)
    assert np.isfinite(vectors).all()


def test_a_full_disk_leaves_no_file(nursery: Nursery, folder: Path, small_texts: list[str], tmp_path: Path) -> None:
    (folder / "other.txt").write_text("\n".join(small_texts))  # different texts: their vectors do not compress
    for out in (tmp_path / "x.npy", tmp_path / "x.parquet"):
        code, text = nursery.run(command(folder, "other.txt", out, "text"), ["disk_full", 10_000])
        assert code == 1
        assert f"cannot write {out}: " in text
    assert list(tmp_path.iterdir()) == []
