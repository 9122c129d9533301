from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from bertie.base import storage
from bertie.base.errors import MachineError, UsageError, UserError
from bertie.batches.contiguous import DocSentences
from bertie.batches.layouts import Layout
from bertie.batches.loader import Loader, Position, StepPlan, StepShape
from bertie.batches.sections import sections
from bertie.batches.sentence_pairs import SentencePairs
from bertie.corpus.cooccurrence import cooccurrence_vectors
from bertie.corpus.prepare import prepare
from bertie.corpus.remote_shards import RemoteArrays, ShardCache
from bertie.corpus.shards import Shards, open_shards
from bertie.files import store
from bertie.tokenizers.tokenizer import Tokenizer

URL = "memory://bucket/shards"


@dataclass
class Bucket:
    """The shards at URL. `answer` gets the path and the bytes of each request, and returns what the store sends."""

    local: Path
    cache: ShardCache
    requests: list[str] = field(default_factory=list)
    answer: Callable[[str, bytes], bytes] = lambda _, found: found

    def open(self, **changed: float) -> Shards:
        return open_shards(URL, ShardCache(self.cache.cache, **changed))

    def change(self, name: str, content: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(f"/bucket/shards/{name}", content)

    def fetched(self) -> set[str]:
        """The arrays in the cache that are large."""
        assert self.cache.cache is not None
        found = {path.name for path in self.cache.cache.rglob("train/*.npy")}
        return {name for name in found if "tokens" in name or "word_starts" in name}


@pytest.fixture(scope="module")
def many_shards(small_texts: list[str], small_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small shards in smaller parts."""
    folder = tmp_path_factory.mktemp("many")
    for part in range(10):
        texts = small_texts[40 * part : 40 * part + 40]
        (folder / f"{part}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    files = [folder / f"{part}.jsonl" for part in range(10)]
    prepare(files, small_tokenizer, folder / "shards", eval_share=0.1, shard_bytes=12_000)
    return folder / "shards"


@pytest.fixture
def bucket(many_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    memory = fsspec.filesystem("memory")
    for path in many_shards.rglob("*"):
        if path.is_file():
            memory.pipe_file(f"/bucket/shards/{path.relative_to(many_shards)}", path.read_bytes())
    found = Bucket(many_shards, ShardCache(tmp_path / "cache"))
    read = MemoryFileSystem.cat_file

    def cat_file(system: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None) -> bytes:
        found.requests.append(path)
        return found.answer(path, read(system, path, start=start, end=end))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    monkeypatch.setattr(store, "CHUNK", 5_000)
    monkeypatch.setattr(store, "PAUSE", 0.0)
    yield found
    memory.rm("/bucket", recursive=True)


def loader(shards: Shards, layout: Layout = SentencePairs(max_length=64), shuffle_tokens: int = 0) -> Loader:
    return Loader(shards.train, shards.tokenizer, layout, StepShape(2, 512), 0, shuffle_tokens=shuffle_tokens)


def contents(steps: list[StepPlan]) -> list[bytes]:
    return [
        b"".join(batch.input_ids.tobytes() + batch.word_starts.tobytes() for batch in step.all_rows) for step in steps
    ]


@pytest.mark.parametrize(
    ("layout", "shuffle_tokens"),
    [(SentencePairs(max_length=64), 0), (DocSentences(max_length=24), 12_000)],
    ids=["pairs", "doc"],
)
def test_the_steps_are_those_of_the_local_folder(bucket: Bucket, layout: Layout, shuffle_tokens: int) -> None:
    requests = iter(range(10**9))

    def sometimes_fail(_: str, found: bytes) -> bytes:
        number = next(requests)
        if number % 20 == 7:
            raise OSError("service unavailable")
        return found[: len(found) // 2] if number % 20 == 13 else found

    bucket.answer = sometimes_fail
    local, remote = open_shards(bucket.local), bucket.open()
    assert (local.fingerprint, local.tokenizer.fingerprint) == (remote.fingerprint, remote.tokenizer.fingerprint)
    assert (local.place, remote.place) == (str(bucket.local), URL)
    assert len(local.train.tokens) > 8
    expected = list(islice(loader(local, layout, shuffle_tokens).steps(Position()), 70))
    assert expected[-1].position.epoch
    found = list(islice(loader(remote, layout, shuffle_tokens).steps(Position()), 70))
    assert contents(found) == contents(expected)
    for start in (3, 40):
        resumed = loader(bucket.open(), layout, shuffle_tokens).steps(expected[start].position)
        assert contents(list(islice(resumed, 5))) == contents(expected[start : start + 5])


def test_counts_are_those_of_the_local_folder(bucket: Bucket) -> None:
    local, remote = open_shards(bucket.local), bucket.open()
    assert remote.unigram_loss == local.unigram_loss
    with ThreadPoolExecutor(1) as pool:
        vectors = [cooccurrence_vectors(pool, each.train, local.tokenizer.size, 8) for each in (local, remote)]
    np.testing.assert_array_equal(*vectors)


def test_counting_the_first_tokens_fetches_no_other_shards(bucket: Bucket) -> None:
    opened = bucket.open()
    assert not bucket.fetched()
    opened.train.frequencies(opened.tokenizer.size, int(opened.train.shard_starts[1]) + 1)
    assert bucket.fetched() == {"00000.tokens.npy", "00001.tokens.npy"}


def test_a_second_start_fetches_the_manifest_only(bucket: Bucket) -> None:
    contents(list(islice(loader(bucket.open()).steps(Position()), 40)))
    bucket.requests.clear()
    contents(list(islice(loader(bucket.open()).steps(Position()), 40)))
    assert bucket.requests == ["/bucket/shards/manifest.json"]


def test_the_next_section_is_fetched_ahead_and_no_other(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.corpus.remote_shards.Thread", AtOnce)
    opened = bucket.open()
    parts = sections(opened.train.shard_starts, 12_000, 0, 0)
    steps = loader(opened, shuffle_tokens=12_000).steps(Position())
    assert len(parts) > 3
    for _ in range(2):
        _ = next(steps).all_rows
    names = {f"{shard:05d}.{kind}.npy" for part in parts[:2] for shard in part for kind in ("tokens", "word_starts")}
    assert bucket.fetched() == names
    bucket.requests.clear()
    second = next(step for step in steps if step.position.section == 1)
    _ = second.all_rows
    assert not bucket.requests


class AtOnce:
    """A thread that does its work when it starts."""

    def __init__(self, target: Callable[[], None], daemon: bool):
        assert daemon
        self.start = target


def test_a_cache_for_one_section_is_enough(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertie.corpus.remote_shards.Thread", AtOnce)
    local = open_shards(bucket.local)
    expected = list(islice(loader(local, shuffle_tokens=9_000).steps(Position()), 70))
    remote = bucket.open(cache_gb=60_000 / 1e9)
    remote.require_room(9_000)
    assert remote.cache is not None
    for step, same in zip(loader(remote, shuffle_tokens=9_000).steps(Position()), expected, strict=False):
        assert contents([step]) == contents([same])
        assert sum(path.stat().st_size for path in remote.cache.root.rglob("*") if path.is_file()) <= 60_000
    arrays = remote.train.tokens
    assert isinstance(arrays, RemoteArrays)
    assert len(arrays.mapped) < len(arrays)  # what is removed from the cache is not kept mapped


def test_a_cache_that_is_too_small_is_refused(bucket: Bucket) -> None:
    opened = bucket.open(cache_gb=60_000 / 1e9)
    with pytest.raises(UsageError, match=r"may hold 6e-05 GB, but memory://bucket/shards .*--cache-gb.*shuffle_tokens"):
        opened.require_room(0)
    bucket.open().require_room(0)
    open_shards(bucket.local).require_room(0)


def test_a_tokenizer_that_another_process_removes_is_fetched_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, left = Tokenizer.load, ["vocab.txt", "tokenizer.json", "tokenizer_config.json"]

    def removing(folder: Path) -> Tokenizer:
        if left:  # a full cache, in which another training fetches
            (folder / left.pop()).unlink()
        return load(folder)

    monkeypatch.setattr(Tokenizer, "load", removing)
    assert bucket.open().tokenizer.fingerprint == open_shards(bucket.local).tokenizer.fingerprint
    assert not left


def test_the_tokenizer_stays_until_it_is_read(bucket: Bucket) -> None:
    files = open_shards(bucket.local).manifest["files"]
    tokenizer = sum(entry["bytes"] for name, entry in files.items() if name.startswith("tokenizer/"))
    largest = max(entry["bytes"] for name, entry in files.items() if name.startswith(("train/", "eval/")))
    assert bucket.open(cache_gb=(tokenizer + largest) / 1e9).train.shard_starts[-1] > 0
    with pytest.raises(UserError, match=r"has no room .*: raise --cache-gb"):
        bucket.open(cache_gb=tokenizer / 2e9)


def test_processes_share_the_cache(bucket: Bucket) -> None:
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()

    def read() -> None:
        bucket.requests.clear()
        steps = contents(list(islice(loader(bucket.open()).steps(Position()), 20)))
        results.put((hash(b"".join(steps)), [name for name in bucket.requests if "manifest" not in name]))

    processes = [fork.Process(target=read) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    assert len({steps for steps, _ in found}) == 1
    requests = [name for _, names in found for name in names]
    sizes = {name: entry["bytes"] for name, entry in open_shards(bucket.local).manifest["files"].items()}
    for name in set(requests):
        assert requests.count(name) == -(-sizes[name.removeprefix("/bucket/shards/")] // 5_000)


@pytest.mark.parametrize("name", ["tokenizer/vocab.txt", "eval/00000.documents.npy"])
def test_small_files_are_verified_at_the_start(bucket: Bucket, name: str) -> None:
    content = (bucket.local / name).read_bytes()
    bucket.change(name, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{URL}/{name} was altered"):
        bucket.open()
    bucket.change(name, content[:-1])
    with pytest.raises(MachineError, match=rf"{URL}/{name} failed 8 times, .* the store sent"):
        bucket.open()
    fsspec.filesystem("memory").rm(f"/bucket/shards/{name}")
    with pytest.raises(UserError, match=rf"{URL}/{name} is missing"):
        bucket.open()


def test_token_arrays_are_verified_when_they_are_read(bucket: Bucket) -> None:
    name = "train/00002.tokens.npy"
    content = (bucket.local / name).read_bytes()
    bucket.change(name, content[:-1] + bytes([content[-1] ^ 1]))
    opened = bucket.open()
    assert len(opened.train.tokens[1])
    with pytest.raises(UserError, match=rf"{URL}/{name} was altered"):
        _ = opened.train.tokens[2]


def test_ids_beyond_the_vocabulary_are_refused(bucket: Bucket, tmp_path: Path) -> None:
    """The checksums are right: another program may have written arrays and manifest."""
    manifest = json.loads((bucket.local / "manifest.json").read_text())
    for name, changed in (("tokens", lambda a: a + 5_000), ("word_starts", lambda a: a[:-1])):
        path = tmp_path / "train" / f"00000.{name}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, changed(np.load(bucket.local / "train" / path.name)))
        manifest["files"] |= storage.checksums(tmp_path, [path])
        bucket.change(f"train/{path.name}", path.read_bytes())
    del manifest["sha256"]
    bucket.change("manifest.json", json.dumps(manifest).encode())
    train = bucket.open().train
    for arrays, name in ((train.tokens, "tokens"), (train.word_starts, "word_starts")):
        with pytest.raises(UserError, match=rf"train/00000\.{name}\.npy is damaged .*: prepare again"):
            _ = arrays[0]
        assert len(arrays[1])


def with_header(header: str) -> bytes:
    text = header.ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        pickle.dumps([1, 2]),
        with_header("{'descr': '<u2', 'fortran_order': False, 'shape': (1099511627776, 1099511627776)}"),
        with_header("{'descr': '|O', 'fortran_order': False, 'shape': (3,)}"),
        with_header("("),
    ],
    ids=["empty", "pickle", "overflow", "objects", "open"],
)
@pytest.mark.parametrize("kind", ["tokens", "documents"])
def test_what_is_no_array_is_refused(bucket: Bucket, tmp_path: Path, kind: str, content: bytes) -> None:
    """The checksums are right: another program may have written arrays and manifest."""
    folder, name = tmp_path / "local", f"train/00000.{kind}.npy"
    shutil.copytree(bucket.local, folder)
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] |= storage.checksums(folder, [folder / name])
    del manifest["sha256"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    bucket.change(name, content)
    bucket.change("manifest.json", json.dumps(manifest).encode())
    with pytest.raises(UserError, match=r"manifest\.json is damaged \(.*\): prepare again"):
        open_shards(folder)
    with pytest.raises(UserError, match=r"is damaged \(.*\): prepare again"):
        _ = bucket.open().train.tokens[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", r"manifest\.json failed 8 times"),
        (b"[]", r"manifest\.json is damaged: it is not a JSON object"),
        (b'{"format": 99}', r"memory://bucket/shards/manifest\.json: format 99"),
        (b'{"format": 1, "files": 3}', r"manifest\.json is damaged"),
    ],
)
def test_a_damaged_manifest_is_named(bucket: Bucket, content: bytes, message: str) -> None:
    bucket.change("manifest.json", content)
    with pytest.raises(UserError, match=message):
        bucket.open()


@pytest.mark.parametrize(
    "changed",
    [
        {"../../outside": {"bytes": 1, "sha256": ""}},
        {"tokenizer/a": {"bytes": -1, "sha256": ""}},
        {"tokenizer/a": {"bytes": 1}},
    ],
)
def test_a_manifest_of_wrong_files_is_refused(bucket: Bucket, changed: dict[str, object]) -> None:
    manifest = json.loads((bucket.local / "manifest.json").read_text())
    manifest["files"] |= changed
    del manifest["sha256"]
    bucket.change("manifest.json", json.dumps(manifest).encode())
    with pytest.raises(UserError, match=r"lists \.\./\.\./outside, a file outside|manifest\.json is damaged"):
        bucket.open()


def test_no_shards_at_a_url(bucket: Bucket) -> None:
    with pytest.raises(UserError, match=r"memory://bucket/other/manifest\.json is missing"):
        open_shards("memory://bucket/other", bucket.cache)


def test_a_cache_for_a_local_folder_is_refused(bucket: Bucket) -> None:
    with pytest.raises(
        UsageError, match=r"--cache and --cache-gb are for shards in an object store, but .* is a folder"
    ):
        open_shards(bucket.local, bucket.cache)
