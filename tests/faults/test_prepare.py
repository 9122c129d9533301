"""Preparing a corpus: killed at any moment, or on a full disk, the same call goes on and ends in the same bytes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from killing import wait_for

from bertie.tokenizers.tokenizer import Tokenizer

CHILD = """
import resource, sys
from pathlib import Path
sys.path.append(sys.argv[2])
import holding
from bertie.base import storage
from bertie.cli import main
from bertie.files import sources
from bertie.corpus import duplicates, prepare
sources.MIN_GROUP_BYTES, duplicates.PART_BYTES = 20_000, 1_000
prepare.prepare.__kwdefaults__["shard_bytes"] = 20_000
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
place, point, number = sys.argv[3:6]
if point == "publish":
    holding.at_call(place, storage, "publish")
elif point:
    holding.at_progress(place, point, int(number))
sys.exit(main(sys.argv[6:]))
"""
Point = tuple[str, int]  # the title of a progress bar, and at which of its advances; or "publish", just before the end
NOWHERE = ("", 0)
EARLY = [("read", 1), ("find duplicates", 1), ("encode", 1)]
LATE = [("read", 7), ("find duplicates", 20), ("encode", 9), ("publish", 1)]


@pytest.fixture(scope="module")
def command(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    small_tokenizer.save(folder / "tokenizer")
    (folder / "texts").mkdir()
    for number in range(20):
        rows = [{"text": f"{text} {number}."} for text in small_texts[number * 20 : number * 20 + 40]]
        (folder / "texts" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--tokenizer", str(folder / "tokenizer"), "--eval-share", "0.1"]
    return ["prepare", str(folder / "texts"), *flags]


def child(command: list[str], out: Path, largest: int = 0, point: Point = NOWHERE) -> subprocess.Popen[str]:
    """It waits for a signal at the point: the file `held` beside `out` says so. Processes take longer to start than to work."""
    place = [str(Path(__file__).parent), str(out.with_name("held")), *map(str, point)]
    workers = "2" if largest or point[0] in ("read", "find duplicates", "encode") else "1"
    words = [sys.executable, "-c", CHILD, str(largest), *place, *command, "--workers", workers, "--out", str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run makes."""
    out = tmp_path_factory.mktemp("whole") / "shards"
    with child(command, out) as process:
        assert process.wait(300) == 0, process.stderr
    return contents(out)


@pytest.mark.parametrize(
    ("how", "points"),
    [
        (signal.SIGKILL, LATE),
        pytest.param(signal.SIGKILL, EARLY, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, [*EARLY, *LATE], marks=pytest.mark.slow),
    ],
    ids=["kill", "early kill", "term"],
)
def test_killed_again_and_again(
    command: list[str], whole: dict[str, bytes], tmp_path: Path, how: signal.Signals, points: list[Point]
) -> None:
    """The process that leads waits at each point; its workers are wherever they come to meanwhile."""
    out, held = tmp_path / "shards", tmp_path / "held"
    for point in points:
        with child(command, out, point=point) as process:
            wait_for(held, process)
            process.send_signal(how)
            code = process.wait(300)
        assert code == (130 if how == signal.SIGTERM else -how), point
        assert not out.exists()
        held.unlink()
    with child(command, out) as process:
        assert process.wait(300) == 0
    assert contents(out) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


@pytest.mark.parametrize("largest", [8_000, *(pytest.param(size, marks=pytest.mark.slow) for size in (20_000, 0))])
def test_a_full_disk_loses_nothing(command: list[str], whole: dict[str, bytes], tmp_path: Path, largest: int) -> None:
    """A file may not grow past a size: blocks of 20 kB, then some arrays, then the largest file of all are too much."""
    largest = largest or max(map(len, whole.values())) - 1
    out = tmp_path / "shards"
    with child(command, out, largest) as process:
        _, told = process.communicate(timeout=300)
    assert process.returncode == 1, told
    assert "\nbertie: cannot write " in f"\n{told}", told  # loky may print its own warning after it
    assert not out.exists()
    done = set(tmp_path.rglob("*.json"))
    assert done  # at least the plan
    with child(command, out) as process:
        assert process.wait(300) == 0
    assert contents(out) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
