from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertie.base.errors import MachineError, UserError
from bertie.files.file_cache import FileCache

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


def test_a_killed_or_failed_download_begins_again(tmp_path: Path) -> None:
    def kill(_: str, start: int, content: bytes) -> bytes:
        if start == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        return content

    def fail(_: str, start: int, content: bytes) -> bytes:
        if start == 100:
            raise MachineError("reading failed")
        return content

    process = in_process(lambda: cache_of(tmp_path, kill).fetch("train/2.npy"))
    process.join()
    assert process.exitcode == -signal.SIGKILL
    cache = cache_of(tmp_path, fail)
    assert kept(cache) == ["train/.2.npy.part"]
    with pytest.raises(MachineError, match="reading failed"):
        cache.fetch("train/2.npy")
    assert kept(cache) == []
    assert cache_of(tmp_path).fetch("train/2.npy").read_bytes() == CONTENT["train/2.npy"]
    assert kept(cache) == ["train/2.npy"]


def test_altered_bytes_are_refused(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, lambda *given: given[2][::-1])
    with pytest.raises(UserError, match=r"s3://…/shards/train/3\.npy was altered"):
        cache.fetch("train/3.npy")
    assert kept(cache) == []


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
    with pytest.raises(UserError, match=r"has no room within 8e-07 GB: raise --cache-gb"):
        cache.fetch("train/0.npy", keep=CONTENT)
    assert kept(cache) == ["train/2.npy", "train/3.npy", "train/4.npy"]


def test_files_of_other_folders_make_room_but_no_download_in_progress(tmp_path: Path) -> None:
    other = tmp_path / "cache" / "other.bertie-cache" / "train"
    other.mkdir(parents=True)
    (other / "old.npy").write_bytes(bytes(500))
    (other / ".left.npy.part").write_bytes(bytes(300))  # of a process that was killed
    cache = cache_of(tmp_path, limit=600)

    def another(_: str, start: int, content: bytes) -> bytes:
        if start == 0:
            assert [path.name for path in other.iterdir()] == [".left.npy.part"]
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


def test_downloads_wait_for_room_that_others_take(tmp_path: Path) -> None:
    def wait(name: str, start: int, content: bytes) -> bytes:
        if (name, start) == ("train/0.npy", 0):
            begun.set()
            while len(cache.store.requests) > 1:  # the other download has begun, and must not have
                raise AssertionError
            time.sleep(0.1)
        return content

    cache, begun = cache_of(tmp_path, wait, limit=300), threading.Event()  # room for one
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.fetch, "train/0.npy")
        begun.wait()
        pool.submit(cache.fetch, "train/1.npy").result()
        first.result()
    assert len(kept(cache)) == 1
    assert len(cache.store.requests) == 6


def test_a_busy_file_is_left_to_the_other_process(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)

    def another(_: str, __: int, content: bytes) -> bytes:
        assert not cache_of(tmp_path).fetch("train/0.npy", wait=False).exists()
        return content

    cache.store.answer = another
    assert cache.fetch("train/0.npy").exists()


def test_a_full_disk_is_named_and_leaves_nothing_half(tmp_path: Path) -> None:
    def full(_: str, start: int, content: bytes) -> bytes:
        if start:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return content

    cache = cache_of(tmp_path, full)
    with pytest.raises(MachineError, match=r"cannot write .*0\.npy: No space left on device: free some space, or"):
        cache.fetch("train/0.npy")
    assert kept(cache) == []


def test_without_a_limit_half_of_the_disk_is_left(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    free = os.statvfs(tmp_path)
    assert 0 < cache.limit < free.f_blocks * free.f_frsize / 2
    assert cache_of(tmp_path, limit=800).limit == 800
    part = tmp_path / "cache" / "other.bertie-cache" / ".a.part"  # whose bytes have not arrived
    part.parent.mkdir(parents=True)
    part.touch()
    os.truncate(part, 10**12)
    assert cache.limit < free.f_blocks * free.f_frsize / 2
