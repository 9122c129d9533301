"""`bertie convert`, killed or failed, leaves no folder; the same command then writes one. It never writes its source."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from killing import Nursery
from safetensors.torch import load_file

from bertie.checkpoints.read import verify


@pytest.fixture(params=["safetensors"])
def source(request: pytest.FixtureRequest, pretrained: Path, tmp_path: Path) -> Iterator[Path]:
    """A model whose weights have the format of the parameter. At the end, it must be as it was."""
    source = shutil.copytree(pretrained, tmp_path / "source")
    if request.param != "safetensors":
        weights = load_file(source / "model.safetensors")
        torch.save(weights, source / "pytorch_model.bin", _use_new_zipfile_serialization=request.param == "zip")
        (source / "model.safetensors").unlink()
    before = state(source)
    yield source
    assert state(source) == before


def state(folder: Path) -> list[tuple[str, int, int, bytes]]:
    """Name, number, time and bytes of a folder and its files."""
    found = [(path, path.stat()) for path in sorted((folder, *folder.rglob("*")))]
    return [
        (str(path), has.st_ino, has.st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path, has in found
    ]


def command(source: Path, out: Path) -> list[str]:
    return ["convert", str(source), str(out), "--to", "hf"]


def finish(nursery: Nursery, source: Path, out: Path) -> None:
    nursery.finish(command(source, out))
    assert {path.name for path in out.parent.iterdir()} == {"source", "out"}
    verify(out)


@pytest.mark.parametrize(
    ("source", "patch"),
    [
        ("safetensors", ["hold_torn", 1]),
        ("legacy", ["hold_before", "rename .out.tmp-new", 1]),
        pytest.param("zip", ["hold_before", "fsync", 1], marks=pytest.mark.slow),
        pytest.param("zip", ["hold_before", "write_atomic .out.tmp-new/manifest.json", 1], marks=pytest.mark.slow),
    ],
    indirect=["source"],
)
@pytest.mark.parametrize(
    "stop", [signal.SIGKILL, *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGINT, signal.SIGTERM))]
)
def test_a_killed_conversion_leaves_no_folder(
    nursery: Nursery, source: Path, tmp_path: Path, patch: list[object], stop: signal.Signals
) -> None:
    out = tmp_path / "out"
    name, *arguments = patch
    victim = nursery.start_held(command(source, out), str(name), *arguments)
    assert (tmp_path / ".out.tmp-new").is_dir()
    code = victim.kill(stop)
    left = {path.name for path in tmp_path.iterdir()} - {"source"}
    if stop is signal.SIGKILL:
        assert code == -signal.SIGKILL
        assert left == {".out.tmp-new", ".out.tmp-lock"}
    else:
        assert code == 130
        assert left == set()
    finish(nursery, source, out)


def test_a_full_disk_leaves_no_folder(nursery: Nursery, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, text = nursery.run(command(source, out), ["disk_full", 10_000])
    assert code == 1
    assert "cannot write" in text.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
