"""Preparing a corpus: killed at any moment, or on a full disk, the same call goes on and ends in the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertie.text.tokenizer import Tokenizer

CHILD = """
import resource, sys
from pathlib import Path
from bertie.cli import main
from bertie.files import sources
from bertie.text import duplicates, prepare
sources.LEAST_GROUP, duplicates.PART_BYTES = 20_000, 1_000
prepare.prepare.__kwdefaults__["shard_bytes"] = 20_000
if sys.argv[1] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def command(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    small_tokenizer.save(folder / "tokenizer")
    (folder / "texts").mkdir()
    for number in range(20):
        rows = [{"text": f"{text} {number}."} for text in small_texts[number * 20 : number * 20 + 40]]
        (folder / "texts" / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--tokenizer", str(folder / "tokenizer"), "--eval-share", "0.1", "--workers", "2"]
    return ["prepare", str(folder / "texts"), *flags]


def child(command: list[str], out: Path, largest: int = 0) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", CHILD, str(largest), *command, "--out", str(out)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, encoding="utf-8")


def count(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))  # which does not mind what goes away meanwhile


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def whole(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run makes."""
    out = tmp_path_factory.mktemp("whole") / "shards"
    with child(command, out) as process:
        assert process.wait(300) == 0, process.stderr
    return contents(out)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_again_and_again(
    command: list[str], whole: dict[str, bytes], tmp_path: Path, how: signal.Signals
) -> None:
    rng = random.Random(int(how))
    out = tmp_path / "shards"
    codes: list[int] = []
    while not out.exists():
        at = rng.randrange(1, 60) + 60 * len(codes)  # files that are there when it is killed
        with child(command, out) as process:
            deadline = time.monotonic() + 120
            while process.poll() is None and count(tmp_path / ".shards.tmp-work") < at and time.monotonic() < deadline:
                time.sleep(0.001)
            hangs = time.monotonic() > deadline
            process.send_signal(how)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                hangs = True
                process.kill()
                code = process.wait()
        assert not hangs, f"it hangs with {count(tmp_path)} files"
        codes.append(code)
    assert set(codes) <= {0, 130, -how}, codes  # as Python starts, or ends, a SIGTERM ends the process itself
    assert sum(code in (130, -signal.SIGKILL) for code in codes) > 3, "it was hardly ever killed"
    assert contents(out) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]


@pytest.mark.parametrize("largest", [8_000, 20_500, 0])
def test_a_full_disk_loses_nothing(command: list[str], whole: dict[str, bytes], tmp_path: Path, largest: int) -> None:
    """A file may not grow past a size: blocks of 20 kB, then some arrays, then the largest file of all are too much."""
    largest = largest or max(map(len, whole.values())) - 1
    out = tmp_path / "shards"
    with child(command, out, largest) as process:
        _, told = process.communicate(timeout=300)
    assert process.returncode == 1, told
    assert told.splitlines()[-1].startswith("bertie: cannot write "), told
    assert not out.exists()
    done = set(tmp_path.rglob("*.json"))
    assert done  # at least the plan
    with child(command, out) as process:
        assert process.wait(300) == 0
    assert contents(out) == whole
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
