"""`bertie glue` is killed: the same command resumes, and the result equals that of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest
from killing import Nursery, differences


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2 and STS-B with a few examples each."""
    folder = tmp_path_factory.mktemp("glue")
    for name in ("SST-2", "STS-B"):
        (folder / name).mkdir()
    for name, count in (("train", 32), ("dev", 8)):
        films = "".join(f"the {'abcdefgh'[i % 8] * (i % 5 + 1)} ship\t{i % 2}\n" for i in range(count))
        pairs = "".join(f"{i}\tthe {'abcd'[i % 4]} ship\tthe b ship\t{i % 6}.0\n" for i in range(count))
        (folder / "SST-2" / f"{name}.tsv").write_text("sentence\tlabel\n" + films)
        (folder / "STS-B" / f"{name}.tsv").write_text("index\tsentence1\tsentence2\tscore\n" + pairs)
    (folder / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe aa ship\n1\tthe b ship\n")
    (folder / "STS-B" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\tthe a ship\tthe b ship\n")
    return folder


def glue_command(folder: Path, model: Path, out: Path) -> list[str]:
    flags = "--max-length 32 --training.epochs 1 --training.batch-size 8 --training.precision fp32 --threads 1"
    return ["glue", str(folder), "--model", str(model), "--out", str(out), *flags.split()]


@pytest.fixture(scope="module")
def undisturbed_out(
    nursery: Nursery, folder: Path, undisturbed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    nursery.finish(glue_command(folder, undisturbed, out))
    return out


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("write_atomic /stsb/config.toml", 1),  # between two tasks
        pytest.param("write_atomic .stsb.tmp config.toml", 1, marks=pytest.mark.slow),
        pytest.param("save_tensors /stsb/model", 1, marks=pytest.mark.slow),
        pytest.param("write_atomic /submission/SST-2.tsv", 1, marks=pytest.mark.slow),
        pytest.param("replace /submission/.SST-2.tsv", 1, marks=pytest.mark.slow),
        pytest.param("write_atomic /sst2/glue.json", 1, marks=pytest.mark.slow),
        pytest.param("replace /out/.scores.json", 1, marks=pytest.mark.slow),
    ],
)
def test_killed_glue_resumes_to_the_same_result(
    nursery: Nursery, folder: Path, undisturbed: Path, undisturbed_out: Path, tmp_path: Path, what: str, number: int
) -> None:
    out = tmp_path / "out"
    command = glue_command(folder, undisturbed, out)
    nursery.die(command, "die_before", what, number)
    assert differences(out, undisturbed_out)
    nursery.finish(command)
    assert differences(out, undisturbed_out) == []
