from __future__ import annotations

import errno
import hashlib
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.errors import MachineError, UserError
from bertie.files import file_cache
from bertie.files.file_cache import CacheFullError, FileCache

CHUNK = 100
CONTENT = {f"train/{number}.npy": bytes(range(number, number + 250)) for number in range(5)}  # three requests each


class FakeStore:
    """A store in memory. It appends each request to a file, which other processes may share."""

    place = "s3://…/shards"

    def __init__(self, log: Path, answer: Callable[[str, int, bytes], bytes] = lambda *given: given[2]):
        self.log, self.answer = log, answer
        log.touch()

    def read(self, name: str, start: int, size: int) -> bytes:
        with open(self.log, "a") as file:
            file.write(f"{name} {start}\n")
        assert size == len(CONTENT[name])
        return self.answer(name, start, CONTENT[name][start : start + CHUNK])

    @property
    def requests(self) -> list[str]:
        return self.log.read_text().splitlines()


def cache_of(folder: Path, answer: Callable[[str, int, bytes], bytes] = lambda *given: given[2], limit: int = 0) -> Any:
    files = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in CONTENT.items()
    }
    return FileCache(folder / "cache", "key", FakeStore(folder / "log", answer), files, limit / 1e9)  # type: ignore[arg-type]


def kept(cache: FileCache) -> list[str]:
    """The files in the cache, also incomplete ones."""
    found = (path.relative_to(cache.folder).as_posix() for path in cache.folder.rglob("*") if path.is_file())
    return sorted(found)


def in_process(work: Callable[[], object]) -> Any:
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def test_a_file_is_fetched_once(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    for _ in range(2):
        assert cache.fetch("train/1.npy").read_bytes() == CONTENT["train/1.npy"]
    assert cache.store.requests == ["train/1.npy 0", "train/1.npy 100", "train/1.npy 200"]
    assert kept(cache) == ["train/1.npy"]


def test_a_file_that_another_program_altered_is_fetched_again(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    path = cache.fetch("train/1.npy")
    for changed in (b"x" * 250, b"x"):
        path.write_bytes(changed)
        assert cache.fetch("train/1.npy").read_bytes() == CONTENT["train/1.npy"]


def test_processes_share_a_download(tmp_path: Path) -> None:
    cache, waiting = cache_of(tmp_path), multiprocessing.get_context("fork").Barrier(3)

    def fetch() -> None:
        waiting.wait()
        for name, content in CONTENT.items():
            assert cache.fetch(name).read_bytes() == content

    processes = [in_process(fetch) for _ in range(2)]
    fetch()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(cache.store.requests) == sorted(f"{name} {start}" for name in CONTENT for start in (0, 100, 200))
    assert kept(cache) == sorted(CONTENT)


def test_a_killed_download_is_continued(tmp_path: Path) -> None:
    def kill(_: str, start: int, content: bytes) -> bytes:
        if start == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return content

    process = in_process(lambda: cache_of(tmp_path, kill).fetch("train/2.npy"))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    cache = cache_of(tmp_path)
    assert kept(cache) == ["train/.2.npy.250.part"]
    assert cache.fetch("train/2.npy").read_bytes() == CONTENT["train/2.npy"]
    assert cache.store.requests == [f"train/2.npy {start}" for start in (0, 100, 200, 200)]
    assert kept(cache) == ["train/2.npy"]


def test_a_failed_download_is_continued(tmp_path: Path) -> None:
    def fail(_: str, start: int, content: bytes) -> bytes:
        if start == 100:
            raise MachineError("reading failed")
        return content

    with pytest.raises(MachineError, match="reading failed"):
        cache_of(tmp_path, fail).fetch("train/2.npy")
    cache = cache_of(tmp_path)
    assert cache.fetch("train/2.npy").read_bytes() == CONTENT["train/2.npy"]
    assert cache.store.requests == [f"train/2.npy {start}" for start in (0, 100, 100, 200)]


def test_altered_bytes_are_fetched_again_and_then_refused(tmp_path: Path) -> None:
    left = [1, 10]

    def alter(_: str, start: int, content: bytes) -> bytes:
        if start == 100 and left[0]:
            left[0] -= 1
            return content[::-1]
        return content

    cache = cache_of(tmp_path, alter)
    assert cache.fetch("train/0.npy").read_bytes() == CONTENT["train/0.npy"]
    left[0] = 10
    with pytest.raises(UserError, match=r"s3://…/shards/train/3\.npy was altered .*sha256"):
        cache.fetch("train/3.npy")
    assert left[0] == 10 - file_cache.DOWNLOADS
    assert kept(cache) == ["train/0.npy"]


def test_a_file_that_is_not_valid_gets_no_name(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)

    def refuse(path: Path) -> None:
        assert path.read_bytes() == CONTENT["train/0.npy"]
        raise ValueError("wrong dtype")

    with pytest.raises(UserError, match=r"train/0\.npy is damaged \(wrong dtype\): prepare again"):
        cache.fetch("train/0.npy", refuse)
    assert kept(cache) == []


def test_the_files_that_were_used_longest_ago_make_room(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=800)  # three files
    oldest = np.memmap(cache.fetch("train/0.npy"), mode="r")
    for name in ("train/1.npy", "train/2.npy", "train/1.npy", "train/3.npy"):
        cache.fetch(name)
    assert kept(cache) == ["train/1.npy", "train/2.npy", "train/3.npy"]
    assert oldest.tobytes() == CONTENT["train/0.npy"]  # a mapped file remains readable
    cache.fetch("train/4.npy", keep=["train/2.npy", "train/3.npy"])
    assert kept(cache) == ["train/2.npy", "train/3.npy", "train/4.npy"]
    with pytest.raises(CacheFullError, match=r"has no room within 8e-07 GB: raise --cache-gb"):
        cache.fetch("train/0.npy", keep=CONTENT)
    assert kept(cache) == ["train/2.npy", "train/3.npy", "train/4.npy"]


def test_files_of_other_folders_make_room_but_no_download_in_progress(tmp_path: Path) -> None:
    other = tmp_path / "cache" / "other.bertie-cache" / "train"
    other.mkdir(parents=True)
    (other / "old.npy").write_bytes(bytes(500))
    (other / ".left.npy.300.part").write_bytes(bytes(10))  # of a process that was killed
    cache = cache_of(tmp_path, limit=600)

    def another(_: str, start: int, content: bytes) -> bytes:
        if start == 0:
            assert [path.name for path in other.iterdir()] == [".left.npy.300.part"]
            cache_of(tmp_path, limit=600).fetch("train/1.npy")
            assert not list(other.iterdir())
        return content

    cache.store.answer = another
    cache.fetch("train/0.npy")
    assert kept(cache) == ["train/0.npy", "train/1.npy"]


def test_files_of_the_user_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    """The user may give a folder that has other things: a scratch disk, the home folder, a run."""
    mine = [tmp_path / "cache" / name for name in ("notes.txt", "train/0.npy", "bertie/run/.lock", "key/train/0.npy")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10_000))
        os.utime(path, (0, 0))
    cache = cache_of(tmp_path, limit=300)
    for name in CONTENT:
        cache.fetch(name)
    assert all(path.stat().st_size == 10_000 for path in mine)
    assert kept(cache) == ["train/4.npy"]


def test_a_file_that_never_has_room_removes_no_other(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, limit=800)
    cache.fetch("train/0.npy")
    cache.files["train/1.npy"]["bytes"] = 801
    with pytest.raises(CacheFullError, match="has no room"):
        cache.fetch("train/1.npy")
    assert kept(cache) == ["train/0.npy"]


def test_downloads_that_wait_for_room_do_not_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "BUSY_SECONDS", 20)
    cache, both, make_room = cache_of(tmp_path, limit=300), threading.Barrier(2), FileCache._make_room
    seen = threading.local()

    def together(self: FileCache, *given: Any) -> None:
        if not hasattr(seen, "first"):
            seen.first = False
            both.wait()  # each of the two downloads has begun, and there is room for one
        make_room(self, *given)

    monkeypatch.setattr(FileCache, "_make_room", together)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(cache.fetch, ["train/0.npy", "train/1.npy"]))
    assert len(kept(cache)) == 1
    assert len(cache.store.requests) == 6


def test_a_disk_that_does_not_keep_times_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FAT has no times before 1980: each file would be fetched again and again."""
    cache, utime = cache_of(tmp_path), os.utime
    monkeypatch.setattr(file_cache.os, "utime", lambda path, ns: utime(path, ns=(ns[0], 315_532_800 * 10**9)))
    with pytest.raises(
        MachineError, match=r"/cache is on a disk that does not keep the time 0 of a file: give another"
    ):
        cache.fetch("train/0.npy")
    assert len(cache.store.requests) == 3


def test_a_busy_file_is_left_to_the_other_process(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)

    def another(_: str, __: int, content: bytes) -> bytes:
        assert not cache_of(tmp_path).fetch("train/0.npy", wait=False).exists()
        return content

    cache.store.answer = another
    assert cache.fetch("train/0.npy").exists()


def test_a_full_disk_is_named_and_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.FileIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(content) > 150:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(content)

    cache = cache_of(tmp_path)
    monkeypatch.setattr(file_cache, "open", FullDisk, raising=False)
    with pytest.raises(
        MachineError, match=r"cannot write .*train/0\.npy: No space left on device: free some space, or"
    ):
        cache.fetch("train/0.npy")
    assert kept(cache) == []


def test_without_a_limit_half_of_the_disk_is_left(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    free = os.statvfs(tmp_path)
    assert 0 < cache.limit < free.f_blocks * free.f_frsize / 2
    assert cache_of(tmp_path, limit=800).limit == 800
    part = tmp_path / "cache" / "other.bertie-cache" / f".a.{10**18}.part"  # which has not arrived
    part.parent.mkdir(parents=True)
    part.touch()
    assert cache.limit < free.f_blocks * free.f_frsize / 2
